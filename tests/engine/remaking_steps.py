"""Making nodes anew by hand: a summarizer whose texts say whose they are, repairs, and the jobs of an upgrade."""

import hashlib
from collections.abc import Callable

from attrs import frozen

import optchat
from optchat.core.clip import clip
from optchat.core.compactor_view import rooms
from optchat.core.prompts import PROMPT_VERSION
from optchat.core.summarizing import SummaryReply, SummaryRequest, run_flow, summary_flow
from optchat.core.tree import Recipe
from optchat.engine import remaking, work
from optchat.engine.inputs import Task

WINDOW_TOKENS = 65_536
DEFAULT = "extractive-1"


@frozen
class Author:
    """A summarizer: its name, what it says, and a digest of what it was given, drawn out to a size."""

    name: str
    size_bytes: int = 300
    window_tokens: int = WINDOW_TOKENS

    def summarize(self, request: SummaryRequest, /) -> SummaryReply:
        digest = hashlib.sha256()
        for source in request.sources:
            digest.update(f"{source.kind}\0{source.text}\0".encode("utf-8", "surrogatepass"))
        text = f"{self.name} {request.purpose} {digest.hexdigest()[:8]} " + f"as {self.name} has it " * 40
        most = min(self.size_bytes, request.limit_bytes)
        return SummaryReply(clip(text, most, request.limit_escaped_bytes) or "-")

    @property
    def recipe(self) -> Recipe:
        return Recipe("summary", self.name, PROMPT_VERSION)

    def text_for(self, task: Task) -> str:
        return run_flow(summary_flow(task.summary, attempts=1), self.summarize).text


def repair(memory: optchat.Memory, ref: str, author: Author, meanwhile: Callable[[], object] = lambda: None) -> int:
    """A repair by hand: begun, every text asked for, something done meanwhile, committed."""
    scope = memory._scope
    plan = remaking.begin_repair(scope, ref, rooms(author.window_tokens, 32_000, scope.row.node_bytes))
    while (task := plan.next()) is not None:
        plan.take(task, author.text_for(task), author.recipe)
    meanwhile()
    return remaking.commit_repair(scope, plan)


def claim(memory: optchat.Memory, author: Author, limit: int = 8) -> work.Claimed:
    return work.claim(
        memory._scope,
        summarizer=author.name,
        is_default=author.name == DEFAULT,
        window_tokens=author.window_tokens,
        limit=limit,
    )


def commit(memory: optchat.Memory, task: Task, author: Author) -> bool:
    """Take one answer."""
    return work.commit(memory._scope, [work.Result(task, author.text_for(task), author.recipe)]) == 1


def give_up(memory: optchat.Memory, task: Task) -> None:
    """A job that has failed for good."""
    assert not work.fail(memory._scope, task, "no", None)


def work_off(memory: optchat.Memory, author: Author, limit: int = 8) -> int:
    """Work every job that can run; how many answers were taken."""
    taken = 0
    while claimed := claim(memory, author, limit).tasks:
        taken += sum(commit(memory, task, author) for task in claimed)
    return taken


def counted(memory: optchat.Memory) -> dict[tuple[str, str], int]:
    """How many current nodes each kind of recipe and model made, by the nodes themselves; joins left out."""
    sql = (
        "SELECT recipe.kind, model, count(*) FROM node JOIN recipe ON recipe.recipe_pk = node.recipe_pk"
        " WHERE recipe.kind <> 'join' GROUP BY recipe.kind, model"
    )
    with memory._scope.store.read() as db:
        return {(kind, model): count for kind, model, count in db.execute(sql).fetchall()}


def counters(memory: optchat.Memory) -> dict[tuple[str, str], int]:
    """The same by the counters that are kept."""
    sql = "SELECT kind, model, sum(nodes) FROM recipe WHERE kind <> 'join' GROUP BY kind, model HAVING sum(nodes) > 0"
    with memory._scope.store.read() as db:
        return {(kind, model): count for kind, model, count in db.execute(sql).fetchall()}


def nodes_and_views(memory: optchat.Memory) -> tuple[dict[int, int], dict[int, int]]:
    """The revisions of every node, and of every view by tree."""
    with memory._scope.store.read() as db:
        nodes = dict(db.execute("SELECT node_key, revision FROM node").fetchall())
        return nodes, dict(db.execute("SELECT tree_pk, revision FROM view").fetchall())


def assert_sound(memory: optchat.Memory) -> None:
    report = memory.verify()
    assert report.ok, report.faults
    assert counted(memory) == counters(memory)
