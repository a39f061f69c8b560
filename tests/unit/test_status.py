"""What upkeep reports: values that can be kept, compared and sent to another process."""

import pickle
from datetime import UTC, datetime

import pytest
from attrs import evolve, fields
from attrs.exceptions import FrozenInstanceError

from optchat.core.ledger import Calls
from optchat.core.status import Fault, ResyncReport, Status, VerifyReport
from optchat.core.terms import JobFailure

AT = datetime(2026, 1, 5, tzinfo=UTC)
HOUR, TOTAL = Calls(2, 900, 80, None, None), Calls(40, 18_000, 1_600, None, 0.25)
STATUS = Status(
    ready=False,
    sessions=2,
    records=30,
    publications=4,
    pending=5,
    running=1,
    stand_ins=1,
    by_default_summarizer=0,
    scrub_pending=False,
    failures=(JobFailure("0+4", "merge", 5, "refused", AT),),
    oldest_pending_at=AT,
    newest_record_at=AT,
    paused="the account has no credit",
    resumes_at=AT,
    last_hour=HOUR,
    total=TOTAL,
    summarizer="mine-1",
    file_bytes=90_112,
)
FAULT = Fault("node_hash", "0+4", "the text is not what was stored; run repair", repairable=True)
REPORTS = [STATUS, FAULT, VerifyReport(False, (FAULT,), {"records": 30}, 0), ResyncReport(3, 1, 2, 1, {"system": 1})]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_is_a_value(report: Status | Fault | VerifyReport | ResyncReport) -> None:
    first = fields(type(report))[0].name

    assert pickle.loads(pickle.dumps(report)) == report
    assert evolve(report, **{first: "other"}) != report
    with pytest.raises(FrozenInstanceError):
        setattr(report, first, "other")


def test_what_a_summarizer_did_not_report_is_not_nothing() -> None:
    assert Calls(1, None, None, None, None) != Calls(1, 0, 0, 0, 0.0)
