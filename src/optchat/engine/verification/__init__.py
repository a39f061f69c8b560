"""
Verification: what is stored, derived again and compared.

Decides: which checks there are, in which order, and how often a repair goes round.
Refuses to know: how a fault came to be.

A check reads in steps of bounded size, each one read transaction, so that a large file is checked while others write:
nobody waits for it, and what changes between two steps is no fault. What one step finds contradicts itself at one
moment. Rooms: :mod:`ledger_checks` (sources), :mod:`tree_checks` (nodes, what is due, views), :mod:`index_checks` (the
index against a shadow of it), :mod:`upkeep_checks` (counters, jobs); :mod:`repairing`, :mod:`job_repairs` and
:mod:`index_repairs` put right what is derived. :mod:`optchat.core.faults` has every code.
"""

from __future__ import annotations

from typing import Final

from optchat.core.faults import REPAIR_ORDER
from optchat.core.status import Fault, VerifyReport
from optchat.engine.handle import Scope
from optchat.engine.origins import TreePlace
from optchat.engine.verification import index_checks, ledger_checks, tree_checks, upkeep_checks
from optchat.engine.verification.checking import Check, uncached
from optchat.engine.verification.repairing import REPAIRS
from optchat.store import forest

_ROUNDS: Final = 8  # what is put right may show what rests on it in another light


def verify(scope: Scope, *, repair: bool) -> VerifyReport:
    """
    Check a scope; with ``repair``, make anew what is derived and wrong. Sources are never touched.

    What was repaired is counted, not listed. Idempotent: repairing again changes nothing.

    Raises:
        StoreBusy, StoreFull, StoreReadOnly: a step of the repair could not be written; those before it stay.
    """
    check = _checked(scope)
    if not repair:
        return _report(check, 0)
    seen: dict[Fault, None] = {}
    for _ in range(_ROUNDS):
        wrong = [found for found in check.found if found.fault.repairable]
        if not wrong or all(found.fault in seen for found in wrong):
            break  # nothing to do, or nothing that doing it again would change
        seen.update(dict.fromkeys(found.fault for found in wrong))
        repaired = uncached(scope)
        check.scope = repaired
        for code in REPAIR_ORDER:
            subjects = [found.subject for found in wrong if found.fault.code == code]
            if subjects:
                REPAIRS[code](check, subjects)
        check = _checked(scope)
    left = {found.fault for found in check.found}
    return _report(check, sum(fault not in left for fault in seen))


def _checked(scope: Scope) -> Check:
    """Every check, once."""
    check = Check(uncached(scope))
    ledger_checks.check_file(check)
    ledger_checks.check_lifecycle(check)
    for segment in check.segments:
        with check.reading() as db:
            chunks = [TreePlace(tree.tree_pk, chunks=tree) for tree in forest.chunk_trees(db, segment.segment)]
            check.places += [*chunks, TreePlace(segment.tree, segment.segment)]
    check.places.append(TreePlace(scope.row.shared_tree))
    for segment in check.segments:
        ledger_checks.check_records(check, segment)
    ledger_checks.check_blobs(check)
    ledger_checks.check_publications(check)
    for place in check.places:
        tree_checks.check_nodes(check, place)
        tree_checks.check_due(check, place)
        if place.chunks is None:
            tree_checks.check_view(check, place)
    ledger_checks.check_pins(check)
    upkeep_checks.check_counters(check)
    upkeep_checks.check_jobs(check)
    index_checks.check_index(check)
    return check


def _report(check: Check, repaired: int) -> VerifyReport:
    faults = tuple(found.fault for found in check.found)
    return VerifyReport(not faults, faults, dict(check.checked), repaired)
