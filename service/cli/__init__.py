"""The `nml` command line. Commands import what they drive when they run, so `nml --help` is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from service.cli import (
    alias,
    datasets,
    demo,
    embeddings,
    estimate,
    inspect,
    jobs,
    keys,
    methods,
    neighbors,
    new_nodes,
    paper,
    serve,
    submit,
    sweep,
    train,
    vector_files,
    watch,
)
from trainer.errors import TrainerError
from trainer.process.threads import wait_politely

app = typer.Typer(
    name="nml",
    help="Train, judge and look up node embeddings of a graph that has no labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands below, too
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from trainer.process.version import version

        typer.echo(f"nml {version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Train, judge and look up node embeddings of a graph that has no labels."""


app.command("train")(train.train)
app.add_typer(sweep.app, name="sweep")
app.command("estimate")(estimate.estimate)
app.command("evaluate")(inspect.evaluate)
app.add_typer(datasets.app, name="datasets")
app.command("methods")(methods.methods)
app.command("presets")(inspect.presets)
app.command("serve")(serve.serve)
app.add_typer(keys.app, name="keys")
app.command("submit")(submit.submit)
app.command("jobs")(jobs.jobs)
app.command("watch")(watch.watch)
app.command("cancel")(jobs.cancel)
app.command("logs")(jobs.logs)
app.command("embeddings")(embeddings.embeddings)
app.command("lookup")(neighbors.lookup)
app.command("neighbors")(neighbors.neighbors)
app.command("export")(vector_files.export)
app.command("alias")(alias.alias)
app.command("publish")(embeddings.publish)
app.command("unpublish")(embeddings.unpublish)
app.command("index")(embeddings.index)
app.command("embed")(new_nodes.embed)
app.command("classify")(new_nodes.classify)
app.command("paper")(paper.paper)
app.command("demo")(demo.demo)


def main() -> None:
    """Run a command; a failure becomes one sentence and the exit code of its kind."""
    wait_politely()
    try:
        app()
    except TrainerError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"{error.kind}: {error}", markup=False)
        sys.exit(error.exit_code)
