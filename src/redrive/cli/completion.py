"""`redrive completion`: the script that completes commands in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the script that completes commands in your shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and names of queues while you type.

    \b
    bash:  echo 'eval "$(redrive completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(redrive completion zsh)"' >> ~/.zshrc
    fish:  redrive completion fish > ~/.config/fish/completions/redrive.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "redrive", "_REDRIVE_COMPLETE").source())
