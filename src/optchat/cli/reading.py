"""
The verbs that read.

Decides: what each asks of the façade, and which columns show it. Each opens the file read-only: a mistyped path is an
error and never a new file, and no verb here works a job.
Refuses to know: how anything is found.
"""

from __future__ import annotations

from typing import Literal

import attrs
import click

import optchat
from optchat.cli import output
from optchat.cli.settings import Settings, on_file, on_memory, pass_settings, session_id
from optchat.cli.tallies import told
from optchat.core.records import readable_bytes, to_bytes
from optchat.memory import kept_receipt, scopes_of

KINDS: tuple[optchat.HitKind, ...] = ("user", "assistant", "tool_call", "tool_result", "report", "note", "summary")

limit_option = click.option("--limit", type=int, default=50, show_default=True, help="Rows on one page.")
cursor_option = click.option("--cursor", metavar="CURSOR", help="Go on where an earlier page ended.")
tokens_option = click.option("--max-tokens", type=int, metavar="N", help="At most so many tokens.")


@click.command()
@on_memory
@pass_settings
def status(settings: Settings) -> int:
    """
    Show the state of a scope: what it holds, what waits, what failed, what it cost.

    Exit 1 if a host holds messages that memory does not, or a session is to be resynchronised.
    """
    with settings.open() as memory:
        now = memory.status()
    stale = 1 if now.behind_sessions else 0
    if settings.as_json:
        output.show_json(now)
        return stale
    output.show_fields(
        [
            ("scope", settings.scope),
            ("ready", "yes" if now.ready else "no"),
            ("sessions", now.sessions),
            ("records", now.records),
            ("publications", now.publications),
            ("newest record", output.moment(now.newest_record_at)),
            ("behind their hosts", _behind(now)),
            ("summaries waiting", now.pending),
            ("summaries running", now.running),
            ("oldest waiting since", output.moment(now.oldest_pending_at)),
            ("stand-ins", now.stand_ins),
            ("by the default summarizer", now.by_default_summarizer),
            ("summarizer", now.summarizer),
            ("paused", now.paused),
            ("resumes", output.moment(now.resumes_at)),
            ("in the last hour", told(now.last_hour)),
            ("in all", told(now.total)),
            ("to be erased", "yes" if now.scrub_pending else "no"),
            ("file", readable_bytes(now.file_bytes)),
        ]
    )
    if now.failures:
        output.show_text()
        output.show_table(
            ("failed", "job", "attempts", "at", "error"),
            [(each.ref, each.kind, each.attempts, output.moment(each.at), each.error) for each in now.failures],
        )
    return stale


def _behind(now: optchat.Status) -> str:
    if not now.behind_sessions:
        return "no"
    named = " ".join(now.behind_sessions)
    return f"{now.behind} messages since {output.moment(now.behind_since)}, of {named}"


@click.command()
@on_file
@pass_settings
def scopes(settings: Settings) -> None:
    """List the scopes of a file and their sizes."""
    found = scopes_of(settings.path())
    if settings.as_json:
        output.show_json(found)
        return
    output.show_table(
        ("scope", "sessions", "records", "publications"),
        [(each.name, each.sessions, each.records, each.publications) for each in found],
    )


@click.command()
@click.argument("session")
@limit_option
@cursor_option
@on_memory
@pass_settings
def turns(settings: Settings, session: str, limit: int, cursor: str | None) -> None:
    """List the turns of a SESSION (its id or its key), oldest first."""
    with settings.open() as memory:
        page = memory.session_by_id(session_id(memory, session)).turns(limit=limit, cursor=cursor)
    if settings.as_json:
        output.show_json(page)
        return
    output.show_table(
        ("id", "outcome", "ref", "request"),
        [(each.id, each.outcome or each.state, each.ref, _beginning(each.request)) for each in page],
    )
    output.show_cursor(page.cursor)


def _beginning(text: str, characters: int = 80) -> str:
    words = " ".join(text.split())
    return words if len(words) <= characters else words[: characters - 1] + "…"


@click.command()
@click.argument("session", required=False)
@tokens_option
@on_memory
@pass_settings
def view(settings: Settings, session: str | None, max_tokens: int | None) -> None:
    """Show the shared view, or the view of a SESSION (its id or its key), as a model is shown it."""
    with settings.open() as memory:
        found = memory.view(None if session is None else session_id(memory, session), max_tokens=max_tokens)
    if settings.as_json:
        output.show_json(found)
        return
    output.show_text(found.text)


@click.command()
@click.argument("session")
@click.option(
    "--window", type=int, default=200_000, show_default=True, metavar="N", help="Tokens of the model's window."
)
@click.option(
    "--output", "answer", type=int, default=8_000, show_default=True, metavar="N", help="Tokens kept for its answer."
)
@click.option("--instructions", type=int, default=0, metavar="N", help="Tokens of what else is sent.")
@click.option("--request", default="", metavar="TEXT", help="What the next turn would ask.")
@on_memory
@pass_settings
def context(settings: Settings, session: str, window: int, answer: int, instructions: int, request: str) -> None:
    """Show what the next turn of a SESSION (its id or its key) would send to a model, and the receipt."""
    budget = optchat.Budget(window=window, output=answer, instructions=instructions)
    with settings.open() as memory:
        found = memory.session_by_id(session_id(memory, session)).preview(budget, request=request)
    if settings.as_json:
        output.show_json(found)
        return
    for message in found.messages:
        output.show_text(f"{message.role}:")
        for part in message.parts:
            output.show_text(_spoken(part))
        output.show_text()
    output.show_text("receipt:")
    output.show_fields(_told(found.receipt))


@click.command()
@click.argument("turn")
@click.option("--session", metavar="SESSION", help="The turn's session (its id or its key), where several have it.")
@on_memory
@pass_settings
def receipt(settings: Settings, turn: str, session: str | None) -> None:
    """Show the receipt of what a TURN (its id) last sent to a model: the lines shown, and what each part cost."""
    with settings.open() as memory:
        found = kept_receipt(memory, turn, session=None if session is None else session_id(memory, session))
    if settings.as_json:
        output.show_json(found)
        return
    output.show_fields([("turn", found.turn_id), ("session", found.session_id), ("at", output.moment(found.at))])
    output.show_fields(_told(found.receipt))
    output.show_text()
    for ref in found.receipt.refs:
        output.show_text(ref)


def _told(receipt: optchat.ContextReceipt) -> list[tuple[str, object]]:
    tokens = receipt.tokens
    return [
        ("snapshot", receipt.snapshot.id),
        ("why", receipt.why),
        ("shared through", receipt.shared_through),
        ("session through", receipt.session_through),
        ("lines", len(receipt.refs)),
        ("missing", " ".join(receipt.missing) or None),
        ("left out", " ".join(receipt.left_out) or None),
        ("repeated", readable_bytes(receipt.repeated_bytes)),
        ("checkpointed", receipt.checkpointed or None),
        ("active transcript", receipt.active_source),
        ("tokenizer", receipt.tokenizer),
        ("window", tokens.window),
        ("instructions", tokens.instructions),
        ("output", tokens.output),
        ("reserve", tokens.reserve),
        *((kind, used) for kind, used in tokens.blocks.items()),
        ("active", tokens.active),
        ("left", tokens.left),
    ]


def _spoken(
    part: optchat.TextPart | optchat.BlobPart | optchat.ToolCallPart | optchat.ToolResultPart | optchat.ReportPart,
) -> str:
    match part:
        case optchat.TextPart(text):
            return text
        case optchat.BlobPart(media_type):
            return f"[{media_type}]"
        case optchat.ToolCallPart(call_id, name, arguments):
            return f"[call {call_id}] {name} {arguments}"
        case optchat.ToolResultPart(call_id, content):
            return f"[result {call_id}] " + "\n".join(_spoken(piece) for piece in content)
        case optchat.ReportPart(name, text):
            return f"[report {name}] {text}"


@click.command()
@click.argument("ref")
@click.option("--depth", type=int, default=1, show_default=True, help="Levels to open at once, 1 to 4.")
@cursor_option
@tokens_option
@click.option("--all", "every_page", is_flag=True, help="Every page; of a record, the exact bytes and nothing else.")
@on_memory
@pass_settings
def zoom(
    settings: Settings, ref: str, depth: int, cursor: str | None, max_tokens: int | None, *, every_page: bool
) -> None:
    """Open a REF: the lines under a node or a publication, or the source of a record."""
    with settings.open() as memory:
        page = memory.zoom(ref, depth=depth, cursor=cursor, max_tokens=max_tokens)
        if every_page:
            raw = page.kind == "record" and not settings.as_json
            if raw:
                output.show_bytes(to_bytes(page.text or ""))
            whole = page
            while page.cursor is not None:
                page = memory.zoom(ref, depth=depth, cursor=page.cursor, max_tokens=max_tokens)
                if raw:
                    output.show_bytes(to_bytes(page.text or ""))
                else:
                    whole = _joined(whole, page)
            if raw:
                return
            page = attrs.evolve(whole, cursor=None, complete=True)
    if settings.as_json:
        output.show_json(page)
        return
    _show_zoom(page)
    output.show_cursor(page.cursor)


def _joined(whole: optchat.ZoomResult, page: optchat.ZoomResult) -> optchat.ZoomResult:
    text = None if whole.text is None else whole.text + (page.text or "")
    return attrs.evolve(whole, lines=whole.lines + page.lines, text=text)


def _show_zoom(page: optchat.ZoomResult) -> None:
    about: list[tuple[str, object]] = [
        ("ref", page.ref),
        ("kind", page.kind),
        ("first", output.moment(page.first_at)),
        ("last", output.moment(page.last_at)),
    ]
    if page.turn is not None:
        about += [("turn", page.turn.id), ("outcome", page.turn.outcome or page.turn.state)]
    if page.paired_ref is not None:
        about.append(("paired with", page.paired_ref))
    about += [("attachment", blob.uri or f"{blob.media_type}, {_size(blob)}") for blob in page.attachments]
    if page.truncated:
        about.append(("note", "the host had cut this text before it was kept"))
    if page.superseded:
        about.append(("note", "of an older generation: rewound since"))
    output.show_fields(about)
    output.show_text()
    if page.text is not None:
        output.show_text(page.text)
        return
    output.show_table(
        ("ref", "kind", "outcome", "text"), [(line.ref, line.kind, line.outcome, line.text) for line in page.lines]
    )


def _size(blob: optchat.BlobPart) -> str:
    return readable_bytes(len(blob.data or b""))


@click.command()
@click.argument("query")
@click.option("--session", metavar="SESSION", help="Of one session only, by its id or its key.")
@click.option("--kind", type=click.Choice(KINDS), help="Of one kind only.")
@click.option("--before", metavar="TIME", help="Said before this time (ISO 8601 with offset).")
@click.option("--after", metavar="TIME", help="Said at or after this time (ISO 8601 with offset).")
@click.option("--order", type=click.Choice(("best", "newest")), default="best", show_default=True)
@click.option("--limit", type=int, default=10, show_default=True, help="Hits on one page, 1 to 50.")
@cursor_option
@on_memory
@pass_settings
def search(
    settings: Settings,
    query: str,
    session: str | None,
    kind: optchat.HitKind | None,
    before: str | None,
    after: str | None,
    order: Literal["best", "newest"],
    limit: int,
    cursor: str | None,
) -> None:
    """Search what was said and what summaries say. Words in "double quotes" are one phrase."""
    with settings.open() as memory:
        page = memory.search(
            query,
            session=None if session is None else session_id(memory, session),
            kind=kind,
            before=before,
            after=after,
            order=order,
            limit=limit,
            cursor=cursor,
        )
    if settings.as_json:
        output.show_json(page)
        return
    output.show_table(
        ("ref", "kind", "at", "session", "excerpt"),
        [(hit.ref, hit.kind, output.moment(hit.at), hit.session_id, hit.excerpt) for hit in page.hits],
    )
    if page.words:
        counted = ", ".join(f"{word} in {count}" for word, count in page.words.items())
        output.note(f"no record has every word: {counted}; leave a word out, or give --order best")
    elif not page.hits:
        output.note("nothing found; try fewer or other words")
    if page.unindexed:
        output.note(f"{page.unindexed} records are not searchable yet; 'optchat status' says what waits")
    output.show_cursor(page.cursor)


@click.command()
@click.argument("ref")
@on_memory
@pass_settings
def date(settings: Settings, ref: str) -> None:
    """Say when what a REF stands for was said, and published."""
    with settings.open() as memory:
        dates = memory.date(ref)
    if settings.as_json:
        output.show_json(dates)
        return
    output.show_fields(
        [
            ("ref", dates.ref),
            ("first", output.moment(dates.first_at)),
            ("last", output.moment(dates.last_at)),
            ("published", output.moment(dates.published_at)),
        ]
    )
