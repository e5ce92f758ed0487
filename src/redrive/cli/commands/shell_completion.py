"""`redrive completion`: the script for shell completion, and the completion of queue names."""

from __future__ import annotations

import click

from redrive.cli.store_target import find_target, open_place

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
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root().command
    click.echo(kind(root, {}, "redrive", "_REDRIVE_COMPLETE").source())


def complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of queues with this prefix. If the store does not answer, there are none, and no error."""
    try:
        with open_place(find_target(ask=False)) as broker:
            return [queue.name for queue in broker.list_queues() if queue.name.startswith(incomplete)]
    except Exception:  # an error message would break the command line that is being typed
        return []
