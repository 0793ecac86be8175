"""`nml sweep`: search the settings that suit a graph; `nml sweep results`: look at what a sweep found."""

from __future__ import annotations

import json
import logging
from inspect import cleandoc
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from service.cli.report import result_console
from service.cli.spec_options import Asked, MethodOption, PresetOption
from service.cli.sweep_report import print_next_steps, print_outcome
from service.cli.sweep_spec import SMOKE_TRIALS, assemble_sweep, shrink, stored_sweep
from service.cli.sweep_table import Standing, watching
from service.cli.train import EXIT_CODES
from trainer.errors import Cancelled, InvalidInput, TrainerError
from tuner.config import SweepSpec, sweep_hash
from tuner.journal import read_sweep
from tuner.results import as_csv, best_trial, chosen_spec, labels, ranked, rows, summary, value_of

TOP = 10  # trials that are shown unless asked otherwise


class SweepGroup(TyperGroup):
    """A command with commands of its own: what does not begin with the name of one is for the sweep itself."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        inner = self.commands.get(args[0]) if args else None
        if inner is not None:
            return inner.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


app = typer.Typer(
    cls=SweepGroup,
    invoke_without_command=True,
    subcommand_metavar="| results DIR",
    context_settings={
        "allow_interspersed_args": True,
        "allow_extra_args": False,
    },  # as of any command with one argument
)


@app.callback()
def sweep(
    spec_file: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="JSON or YAML sweep spec, with a `base`; or use the options")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="a name from `nml datasets`; default digits")] = None,
    method: MethodOption = None,
    preset: PresetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="fix a field of the training spec that trials vary"),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="trials in all; default 30")] = None,
    objective: Annotated[
        str | None, typer.Option(help="val_accuracy (default), or link_auc or i_nml, which need no labels")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="tpe (default), random or grid")] = None,
    scheduler: Annotated[str | None, typer.Option(help="asha (default) stops poor trials early; none")] = None,
    seeds: Annotated[int | None, typer.Option(help="runs per trial, whose mean counts; default 1")] = None,
    concurrency: Annotated[int | None, typer.Option(help="trials at a time; default: as many as fit")] = None,
    cpus: Annotated[int | None, typer.Option(help="CPUs for each trial; default 1")] = None,
    budget: Annotated[float | None, typer.Option("--budget-minutes", help="time for the sweep; default: any")] = None,
    out: Annotated[Path | None, typer.Option(help="sweep directory; default sweeps/<data set>-<sweep hash>")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="go on with the sweep in --out by its own spec; its first command does too"),
    ] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help=f"about a minute: {SMOKE_TRIALS} trials, 10 epochs, a narrow network")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per event on standard output")] = False,
    show: Annotated[bool, typer.Option("--show-spec", help="print the sweep spec as JSON and run nothing")] = False,
) -> None:
    """Search the settings that suit a graph, on Ray Tune: α, T_M, τ and the optimiser's, or the space of SPEC.

    nml sweep --dataset photo --trials 30 --concurrency 2
    nml sweep results sweeps/photo-0123456789
    """
    extra = list(overrides or [])
    fields = {
        "trials": trials, "objective": objective, "algorithm": algorithm, "scheduler.kind": scheduler, "seeds": seeds,
        "concurrency": concurrency, "resources.cpus": cpus, "budget_minutes": budget,
    }  # fmt: skip
    if resume:
        if out is None or spec_file or dataset or method or preset:
            raise InvalidInput("--resume goes on with the sweep in --out by its own spec: give --out and no other")
        spec = stored_sweep(out / "spec.json", extra, fields)
    else:
        spec = assemble_sweep(Asked(spec_file, dataset, method, preset, extra), fields)
    spec = shrink(spec) if smoke else spec
    if show:
        typer.echo(spec.model_copy(update={"space": spec.dimensions()}).model_dump_json(indent=2))
        return
    directory = out or Path("sweeps") / f"{spec.base.data.name}-{sweep_hash(spec)[:10]}"
    _announce(spec, directory, smoke=smoke)
    run(spec, directory, as_json=as_json)


sweep.__doc__ = f"{cleandoc(sweep.__doc__ or '')}\n\n{EXIT_CODES}"


@app.command()
def results(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a sweep directory, finished or not")],
    form: Annotated[str, typer.Option("--format", help="table, csv or json")] = "table",
    top: Annotated[
        int | None, typer.Option(min=1, help=f"only so many, best first; default: {TOP} in a table, else all by number")
    ] = None,
    best_only: Annotated[bool, typer.Option("--best-spec", help="print the best settings, for `nml train`")] = False,
) -> None:
    """Look at what a sweep found so far: its trials, and the best settings beside the first ones."""
    if form not in ("table", "csv", "json"):
        raise InvalidInput(f"--format {form}: choose table, csv or json")
    spec, found, events = read_sweep(directory)
    if best_only:
        chosen = chosen_spec(spec, found)
        if chosen is None:
            raise InvalidInput(f"{directory}: no trial has finished yet, so there are no best settings. Go on with it.")
        typer.echo(chosen.model_dump_json(indent=2))
    elif form == "table":
        console = result_console()
        print_outcome(console, spec, found, top=top or TOP)
        if (events[-1]["type"] if events else None) == "end":
            print_next_steps(console, directory, spec)
        else:
            console.print(f"The sweep is not over. If it does not run: {_resume_command(directory)}", markup=False)
    else:
        order = [trial.number for trial in ranked(found.values())][:top]
        table = rows(spec, found) if top is None else rows(spec, found, order)
        typer.echo(
            as_csv(table) if form == "csv" else json.dumps({**summary(spec, found), "trials": table}, indent=2),
            nl=form == "json",
        )


def run(spec: SweepSpec, directory: Path, *, as_json: bool) -> None:
    """Run a sweep with a table on the terminal, lines in a pipe, or JSON for machines; then tell what came out."""
    warnings = logging.StreamHandler()
    warnings.setLevel(logging.WARNING)  # what is merely informative goes to log.txt
    logging.basicConfig(handlers=[warnings], format="%(levelname)s %(message)s")
    standing = _standing(spec, directory)
    from tuner.sweep import run_sweep

    try:
        with watching(standing, as_json=as_json) as on_event:
            run_sweep(spec, directory, on_event=on_event)
    except TrainerError as error:
        if not as_json and standing.trials:
            print_outcome(result_console(), spec, standing.trials, top=5)
        if isinstance(error, Cancelled):
            _say(f"Go on with {_resume_command(directory)}")
        raise
    if as_json:
        best = best_trial(standing.trials)
        document = {
            "type": "result", "sweep": str(directory), "best": None if best is None else best.number,
            "value": None if best is None else value_of(best), "best_spec": str(directory / "best.json"),
        }  # fmt: skip
        typer.echo(json.dumps(document))
    else:
        console = result_console()
        print_outcome(console, spec, standing.trials, top=5)
        print_next_steps(console, directory, spec)


def _standing(spec: SweepSpec, directory: Path) -> Standing:
    """Where the sweep stands before it goes on."""
    if not (directory / "events.jsonl").exists():
        return Standing(spec)
    _, trials, events = read_sweep(directory)
    return Standing(spec, trials, max((event.get("elapsed", 0.0) for event in events), default=0.0))


def _announce(spec: SweepSpec, directory: Path, *, smoke: bool) -> None:
    if smoke:
        _say(
            f"--smoke: {spec.trials} trials of at most {spec.max_epochs} epochs with a narrow network, to see that a "
            "sweep runs here. What it finds means nothing."
        )
    _say(f"Searching {', '.join(labels(spec).values())} on {spec.base.data.name}, in {directory}")


def _resume_command(directory: Path) -> str:
    return f"nml sweep --resume --out {quote(str(directory))}"


def _say(text: str) -> None:
    """A remark on standard error, so that results alone are on standard output."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)
