"""The command line. Commands are registered here, and import what is heavy when they run."""

from functools import partial
from typing import Annotated

import typer

from kernfed._version import __version__
from kernfed.base.text import TextTable, aligned, format_seconds
from kernfed.cli import (
    audit,
    compare,
    data,
    demo,
    flower,
    hub,
    journal,
    model,
    plan,
    report,
    serve,
    site,
    train,
    verify,
)
from kernfed.cli.command import (
    BENCH_EXAMPLE,
    MARKUP,
    Command,
    LearningCommand,
    OpenCommands,
    OutsideCommand,
    ReleasingCommand,
    bench,
)
from kernfed.cli.console import Json, emit, note, progress
from kernfed.cli.options import Seed, check_output

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

add_command = partial(app.command, cls=Command)
add_command("demo", epilog=demo.EXAMPLE)(demo.demo)
add_command("prepare", epilog=data.PREPARE_EXAMPLE)(data.prepare)
add_command("compare", epilog=compare.EXAMPLE)(compare.compare)
add_command("embed", epilog=data.EMBED_EXAMPLE)(data.embed)
add_command("plan", cls=LearningCommand, epilog=plan.EXAMPLE)(plan.plan)
add_command("train", cls=LearningCommand, epilog=train.EXAMPLE)(train.train)
add_command("predict", epilog=model.PREDICT_EXAMPLE)(model.predict)
add_command("evaluate", epilog=model.EVALUATE_EXAMPLE)(model.evaluate)
add_command("conform", epilog=model.CONFORM_EXAMPLE)(model.conform)
add_command("audit", cls=ReleasingCommand, epilog=audit.EXAMPLE)(audit.audit)
add_command("verify", epilog=verify.VERIFY_EXAMPLE)(verify.verify)
add_command("verify-site", epilog=verify.VERIFY_SITE_EXAMPLE)(verify.verify_site)
add_command("models", epilog=journal.MODELS_EXAMPLE)(journal.models)
add_command("key", epilog=site.KEY_EXAMPLE)(site.key)
add_command("report", epilog=report.EXAMPLE)(report.report)
add_command("serve", epilog=serve.SERVE_EXAMPLE)(serve.serve)
add_command("ask", epilog=serve.ASK_EXAMPLE)(serve.ask)
add_command("bench", epilog=BENCH_EXAMPLE, context_settings=ANYTHING)(bench)
add_command("flower-app", epilog=flower.APP_EXAMPLE)(flower.flower_app)
add_command("flower-run", epilog=flower.RUN_EXAMPLE)(flower.flower_run)
for group in (data.app, site.app, hub.app, hub.change_app, journal.app, journal.approve_app):
    app.add_typer(group)


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
    """Run the command line of this process; the console script ``kernfed``."""
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
