"""The command line: arguments only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

try:
    import rich  # noqa: F401
    import typer
except ModuleNotFoundError:  # said by the command itself: nothing else imports this file
    raise SystemExit('The command line needs typer and rich: pip install "cobilevel[cli]"') from None

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Contextual bilevel optimization in JAX.")


@contextmanager
def _in_a_sentence(*more: type[Exception]) -> Iterator[None]:
    """Errors that a user can fix are reported in a sentence; anything else is a bug, and shows its traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError, *more) as error:
        typer.secho(str(error), fg="red", err=True)
        raise typer.Exit(2) from error


@app.callback()
def main() -> None:
    """Double precision is switched on for the command line, and for it alone; its programs are kept on disk."""
    import jax

    from .ground import keep_programs

    jax.config.update("jax_enable_x64", True)
    try:
        keep_programs()
    except OSError as error:  # no home, or one that cannot be written to: it goes without
        typer.secho(f"Compiled programs are not kept: {error}", fg="yellow", err=True)


@app.command("demo")
def demo_command(
    out: Annotated[Path, typer.Option(help="Where the figure and the solution are written.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which random instance.")] = 0,
) -> None:
    """Infer road capacities from noisy flows: solve, judge, draw."""
    from rich.console import Console

    from .commands import demo

    demo(seed, out, Console())


@app.command("solve")
def solve_command(
    file: Annotated[Path, typer.Argument(help="A Python file that defines problem and samples. It is run.")],
    out: Annotated[Path, typer.Option(help="Where the solution and the checkpoint are kept.")] = Path("solution"),
    steps: Annotated[int | None, typer.Option(min=1, help="The maximal number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything random.")] = None,
    judge: Annotated[bool, typer.Option("--certify", help="Also judge the solution.")] = False,
) -> None:
    """Solve the problem that a file defines. If stopped at any moment, the same command continues.

    The file is code and runs with your permissions: run only files that you trust. It may also define basis, solver
    and options (a dict of further arguments of cobilevel.solve).
    """
    from rich.console import Console

    from .answer import Interrupted
    from .commands import solve_file

    try:
        with _in_a_sentence(TypeError):
            solve_file(file, out, Console(), steps, seed, judge)
    except Interrupted as stop:
        typer.secho(str(stop), fg="yellow", err=True)
        raise typer.Exit(128 + stop.signal) from stop


@app.command("gallery")
def gallery_command(
    name: Annotated[str | None, typer.Argument(help="Which one to solve; without a name, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The picture; by default NAME.png.")] = None,
) -> None:
    """List ready problems with known answers, or solve one: its solution, the truth, the certificate, a picture."""
    from rich.console import Console

    from .commands import list_gallery, solve_entry

    with _in_a_sentence():
        if name is None:
            list_gallery(Console())
        else:
            solve_entry(name, Path(f"{name}.png") if out is None else out, Console())


@app.command("compare")
def compare_command(
    problems: Annotated[list[str] | None, typer.Argument(help="Which problems; by default all.")] = None,
    out: Annotated[Path, typer.Option(help="Where the table and the figure are written.")] = Path("compare"),
    seconds: Annotated[float, typer.Option(min=0.1, help="The wall-clock limit of a run.")] = 20.0,
    seed: Annotated[int, typer.Option(help="Which random instance.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
) -> None:
    """Compare the reduction with methods that do not reduce: seconds, samples and memory to given gaps."""
    from rich.console import Console

    from .commands import METHOD_NAMES, compare_methods

    with _in_a_sentence():
        compare_methods(problems or [], out, seconds, seed, Console(), only or METHOD_NAMES)


@app.command("reproduce")
def reproduce_command(
    experiment: Annotated[str, typer.Argument(help="inverse or cleaning.")],
    out: Annotated[Path | None, typer.Option(help="Where runs, claims, figures and the page are kept.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="About a minute, for a first look.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's protocol; resumable, best on a GPU.")] = False,
    data: Annotated[str, typer.Option(help="For cleaning: digits, mnist, or a folder that holds MNIST.")] = "digits",
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Start nothing new after this many; run again to continue.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the work, given many processors.")
    ] = None,
) -> None:
    """Run an experiment of the paper. Every run is kept: if stopped, the same command continues where it was."""
    import jax
    from rich.console import Console

    from .paper import print_verdicts, reproduce_experiment
    from .sweep import SweepError

    if quick and full:
        raise typer.BadParameter("give --quick or --full, not both.")
    jax.config.update("jax_enable_x64", experiment != "cleaning")  # images are large, and single precision serves them
    budget = "quick" if quick else "full" if full else "default"
    folder = Path(f"{experiment}-{budget}") if out is None else out
    console = Console()
    limit = None if minutes is None else 60 * minutes
    with _in_a_sentence(SweepError):
        finished = reproduce_experiment(experiment, budget, folder, data, limit=limit, workers=workers)
    if finished:
        print_verdicts(folder, console)
    else:
        console.print(f"Time is up. Finished runs are kept in {folder}; the same command continues from there.")


@app.command("report")
def report_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders that reproduce wrote; several share one page.")],
    out: Annotated[Path | None, typer.Option(help="Where the page of several folders is written.")] = None,
) -> None:
    """Write claims, figures and the page of a folder again, or one page for several."""
    from .paper import write_joint_report, write_report

    if len(folders) > 1 and out is None:
        raise typer.BadParameter("several folders need --out, the file for their common page.")
    with _in_a_sentence():
        for folder in folders:
            typer.echo(write_report(folder))
        if out is not None:
            typer.echo(write_joint_report(folders, out))


@app.command("bench")
def bench_command(
    names: Annotated[list[str] | None, typer.Argument(help="Which benchmarks; by default all.")] = None,
    out: Annotated[Path, typer.Option(help="Where the table and the figure are written.")] = Path("bench"),
    folder: Annotated[Path | None, typer.Option(help="Where the scripts are, if not in benchmarks.")] = None,
    names_only: Annotated[bool, typer.Option("--list", help="List the benchmarks without running them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The shorter form of scripts that have one.")] = False,
) -> None:
    """Measure speed on this machine, against the goals of the project."""
    from rich.console import Console

    from .commands import run_benchmarks, speed_benchmarks

    with _in_a_sentence():
        if names_only:
            typer.echo("\n".join(speed_benchmarks(folder, names or [])))
        elif not run_benchmarks(names or [], out, folder, quick, Console()):
            raise typer.Exit(1)


@app.command("version")
def version_command() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)
