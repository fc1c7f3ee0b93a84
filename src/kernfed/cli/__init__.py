"""The command line. Each command is one file; it is registered here and imports what is heavy when it runs."""

import sys
from functools import partial
from typing import Annotated

import typer

from kernfed._version import __version__
from kernfed.cli import audit, bench, data, demo, evaluate, flower_app, flower_run, plan, predict, report, train
from kernfed.cli.running import Command, Commands

app = typer.Typer(
    name="kernfed",
    cls=Commands,
    help="Federated learning in one round, without gradients.",
    epilog="Example: kernfed demo",
    add_completion=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,  # plain text for pipes and files
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

command = partial(app.command, cls=Command)
command("demo", epilog=demo.EXAMPLE)(demo.demo)
command("plan", epilog=plan.EXAMPLE)(plan.plan)
command("train", epilog=train.EXAMPLE)(train.train)
command("predict", epilog=predict.EXAMPLE)(predict.predict)
command("evaluate", epilog=evaluate.EXAMPLE)(evaluate.evaluate)
command("audit", epilog=audit.EXAMPLE)(audit.audit)
command("report", epilog=report.EXAMPLE)(report.report)
command("bench", epilog=bench.EXAMPLE)(bench.bench)
command("flower-app", epilog=flower_app.EXAMPLE)(flower_app.flower_app)
command("flower-run", epilog=flower_run.EXAMPLE)(flower_run.flower_run)
app.add_typer(data.app)


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


__all__ = ["app", "main"]
