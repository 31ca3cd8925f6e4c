"""The command line: arguments only."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Contextual bilevel optimization in JAX.")


@app.callback()
def main() -> None:
    """Double precision is switched on for the command line, and for it alone."""
    import jax

    jax.config.update("jax_enable_x64", True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the figure and the solution are written.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Which random instance.")] = 0,
) -> None:
    """Infer road capacities from noisy flows: solve, judge, draw."""
    from rich.console import Console

    from .demo import demo as show

    show(seed, out, Console())


@app.command()
def version() -> None:
    """Print the version."""
    from . import __version__

    typer.echo(__version__)
