"""The command line. Each command is one file; it is registered here and imports what is heavy when it runs."""

from functools import partial
from typing import Annotated

import typer

from kernfed._version import __version__
from kernfed.cli import (
    approve,
    ask,
    audit,
    bench,
    change,
    compare,
    conform,
    data,
    demo,
    embed,
    evaluate,
    flower_app,
    flower_run,
    hub,
    journal,
    key,
    models,
    plan,
    predict,
    prepare,
    report,
    serve,
    site,
    train,
    verify,
    verify_site,
)
from kernfed.cli.console import Json, TextTable, aligned, emit, format_seconds, note, progress
from kernfed.cli.learning import LearningCommand, ReleasingCommand
from kernfed.cli.outside import MARKUP, OpenCommands, OutsideCommand
from kernfed.cli.running import Command
from kernfed.cli.tables import Seed, check_output

app = typer.Typer(
    name="kernfed",
    cls=OpenCommands,
    help="Federated learning in one round, without gradients.",
    epilog="Example: kernfed demo",
    add_completion=False,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: Of a command that stands in for another and cannot know its options.
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}

command = partial(app.command, cls=Command)
command("demo", epilog=demo.EXAMPLE)(demo.demo)
command("prepare", epilog=prepare.EXAMPLE)(prepare.prepare)
command("compare", epilog=compare.EXAMPLE)(compare.compare)
command("embed", epilog=embed.EXAMPLE)(embed.embed)
command("plan", cls=LearningCommand, epilog=plan.EXAMPLE)(plan.plan)
command("train", cls=LearningCommand, epilog=train.EXAMPLE)(train.train)
command("predict", epilog=predict.EXAMPLE)(predict.predict)
command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
command("conform", epilog=conform.EXAMPLE)(conform.conform)
command("audit", cls=ReleasingCommand, epilog=audit.EXAMPLE)(audit.audit)
command("verify", epilog=verify.EXAMPLE)(verify.verify)
command("verify-site", epilog=verify_site.EXAMPLE)(verify_site.verify_site)
command("models", epilog=models.EXAMPLE)(models.models)
command("key", epilog=key.EXAMPLE)(key.key)
command("report", epilog=report.EXAMPLE)(report.report)
command("serve", epilog=serve.EXAMPLE)(serve.serve)
command("ask", epilog=ask.EXAMPLE)(ask.ask)
command("bench", epilog=bench.EXAMPLE, context_settings=ANYTHING)(bench.bench)
command("flower-app", epilog=flower_app.EXAMPLE)(flower_app.flower_app)
command("flower-run", epilog=flower_run.EXAMPLE)(flower_run.flower_run)
app.add_typer(data.app)
app.add_typer(site.app)
app.add_typer(hub.app)
app.add_typer(change.app)
app.add_typer(journal.app)
app.add_typer(approve.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kernfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Console script ``kernfed``."""
    app(prog_name="kernfed")


#: What commands of other packages are made with, beside the command line itself.
__all__ = [
    "Json",
    "OutsideCommand",
    "Seed",
    "TextTable",
    "aligned",
    "app",
    "check_output",
    "emit",
    "format_seconds",
    "main",
    "note",
    "progress",
]
