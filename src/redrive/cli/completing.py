"""Completion of names while they are typed. A store that does not answer completes nothing, and says nothing."""

from __future__ import annotations

import click

from redrive.cli.connection import Place, chosen, open_place


def complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of queues that begin so."""
    try:
        place: Place = chosen()
        with open_place(place) as broker:
            return [queue.name for queue in broker.list_queues() if queue.name.startswith(incomplete)]
    except Exception:  # whatever it is, a person who presses the tabulator does not want to read about it
        return []
