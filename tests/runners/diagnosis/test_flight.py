"""Flight recorders of many ranks as one table: who is how far, who waits for whom, where they part."""

from __future__ import annotations

import json
from typing import Any

import pytest
from each import for_each

from distui.runners.diagnosis import rank_dumps

STEP, EVAL = ("/srv/job/train.py", 50, "step"), ("/srv/job/train.py", 80, "validate")


def entry(
    seq: int, op: str = "all_reduce", *, size: int = 20, dtype: str = "Float", done: bool = True, pg: int = 0,
    site: tuple[str, int, str] = STEP, at: float = 0.0, p2p: bool = False, backend: str = "gloo",
) -> dict[str, Any]:  # fmt: skip
    file, line, name = site
    inside = {"name": op, "filename": "/opt/lib/torch/distributed/distributed_c10d.py", "line": 3245}
    return {
        "pg_id": pg, "process_group": [str(pg), "default_pg" if pg == 0 else "undefined"], "is_p2p": p2p,
        "collective_seq_id": seq, "profiling_name": f"{backend}:{op}", "state": "scheduled", "retired": done,
        "input_sizes": [[size]] if size else [], "input_dtypes": [dtype] if size else [],
        "time_created_ns": int((1_700_000_000 + seq + at) * 1e9),
        "frames": [inside, {"name": name, "filename": file, "line": line}],
    }  # fmt: skip


def text(entries: list[dict[str, Any]], ranks: str = "[]", **more: Any) -> str:
    status = {str(one["pg_id"]): {"last_enqueued_collective": "99"} for one in entries}
    told = {"pg_config": {"": {"name": "", "ranks": ranks}}, "pg_status": status, "comm_lib_version": ""}
    return json.dumps(told | {"entries": entries} | more)


def test_the_rank_that_did_not_call_is_named_with_those_that_wait() -> None:
    ahead = [*(entry(seq) for seq in range(1, 42)), entry(42, done=False)]
    texts = {rank: text(ahead) for rank in (0, 1, 3)} | {2: text([entry(seq) for seq in range(1, 42)])}
    (group,) = rank_dumps.merged_recorders(texts)
    assert (group.name, group.desc, group.ranks) == ("0", "default_pg", (0, 1, 2, 3))
    assert [(part.called, part.completed) for part in group.parts] == [
        (42, 41),
        (42, 41),
        (41, 41),
        (42, 41),
    ]
    assert group.lowest == (2,)
    (wait,) = group.waits
    assert (wait.ranks, wait.missing, wait.since) == ((0, 1, 3), (2,), 1_700_000_042)
    assert wait.call.what == "all_reduce Float[20]"
    assert wait.call.site == "/srv/job/train.py:50 step"
    assert group.divergences == ()


@for_each(
    ("other", "of"),
    [
        (entry(7, "barrier", size=0, done=False), "operation"),
        (entry(7, dtype="Half", done=False), "type"),
        (entry(7, size=21, done=False), "size"),
        (entry(7, site=EVAL, done=False), "call site"),
    ],
)
def test_the_first_difference(other: dict[str, Any], of: str) -> None:
    same = [entry(seq) for seq in range(1, 7)]
    texts = {
        0: text([*same, entry(7, done=False)]),
        1: text([*same, other]),
        2: text([*same, entry(7, done=False)]),
    }
    (group,) = rank_dumps.merged_recorders(texts)
    (found,) = group.divergences
    assert (found.seq, found.of) == (7, of)
    assert [ranks for _, ranks in found.variants] == [(0, 2), (1,)]
    assert group.lowest == ()
    assert [wait.ranks for wait in group.waits] == [(0, 1, 2)]
    assert group.waits[0].missing == ()


def test_a_skipped_call_shows_in_its_site_before_it_shows_in_its_size() -> None:
    whole = [entry(1), entry(2, site=EVAL), entry(3), entry(4, site=EVAL, size=5)]
    skipped = [entry(1), entry(2), entry(3, site=EVAL, size=5)]
    (group,) = rank_dumps.merged_recorders({0: text(whole), 1: text(skipped)})
    assert [(found.seq, found.of) for found in group.divergences] == [(2, "call site"), (3, "size")]


def test_sizes_may_differ_where_the_collective_allows_it() -> None:
    texts = {rank: text([entry(1, "all_to_all", size=rank + 1)]) for rank in range(3)}
    assert rank_dumps.merged_recorders(texts)[0].divergences == ()


def test_the_same_script_in_another_directory_is_no_difference() -> None:
    texts = {0: text([entry(1)]), 1: text([entry(1, site=("/data/b/job/train.py", 50, "step"))])}
    assert rank_dumps.merged_recorders(texts)[0].divergences == ()


def test_sends_are_no_collectives_and_do_not_count() -> None:
    texts = {0: text([entry(1), entry(2), entry(2, "send", p2p=True)]), 1: text([entry(1), entry(2)])}
    (group,) = rank_dumps.merged_recorders(texts)
    assert [part.called for part in group.parts] == [2, 2]


def test_a_rank_that_called_nothing_at_all_is_missing_too() -> None:
    (group,) = rank_dumps.merged_recorders({0: text([entry(1, done=False)]), 1: text([])})
    assert group.waits[0].missing == (1,)
    assert [part.called for part in group.parts] == [1, 0]


def test_members_that_only_some_ranks_name_make_one_group() -> None:
    alone = text([entry(1)], "[0, 1]")
    (other, sub) = rank_dumps.merged_recorders({0: alone, 1: text([entry(1), entry(1, pg=1)])})
    assert (other.name, other.ranks, other.sure) == ("0", (0, 1), True)
    assert (sub.name, sub.ranks, sub.sure) == ("1", (1,), False)


def test_members_whose_recorders_are_not_here() -> None:
    (group,) = rank_dumps.merged_recorders({0: text([entry(1, done=False)], "[0, 1, 2]")})
    assert group.unasked == (1, 2)
    assert group.waits[0].missing == ()


def test_groups_of_one_name_stay_apart_where_nccl_names_their_members() -> None:
    def nccl(ranks: str, seq: int) -> str:
        config = {"5": {"name": "5", "desc": "mesh_tp", "ranks": ranks}}
        one = entry(seq, pg=5, backend="nccl") | {"state": "completed", "retired": False}
        return text([one], pg_config=config, comm_lib_version="2.27.3", pg_status={"5": {}})

    groups = rank_dumps.merged_recorders(
        {0: nccl("[0, 1]", 3), 1: nccl("[0, 1]", 3), 2: nccl("[2, 3]", 9), 3: nccl("[2, 3]", 9)}
    )
    assert [(group.ranks, group.parts[0].completed, group.lowest) for group in groups] == [
        ((0, 1), 3, ()),
        ((2, 3), 9, ()),
    ]


def test_what_has_left_the_buffer_is_not_known() -> None:
    """torch's own counts have sends and receives in them."""
    status = {"0": {"last_enqueued_collective": 7, "last_completed_collective": 6}}
    (group,) = rank_dumps.merged_recorders({rank: text([], pg_status=status) for rank in (0, 1)})
    assert [(part.called, part.completed) for part in group.parts] == [(None, None), (None, None)]
    assert (group.lowest, group.waits) == ((), ())


def both(rank: int, called: int) -> str:
    """Of a rank whose default group has NCCL and gloo."""
    nccl = {"kind": "nccl", "entries": [entry(9, "all_gather", backend="nccl")], "pg_status": {"0": {}}}
    gloo = {
        "kind": "fr",
        "entries": [entry(called, "barrier", size=0, done=False)],
        "pg_status": {"0": {}, "3": {}},
    }
    return json.dumps({"recorders": [nccl, gloo], "members": {"0": [0, 1], "3": [rank]}})


def test_nccl_and_gloo_of_one_group_are_counted_apart() -> None:
    groups = rank_dumps.merged_recorders({0: both(0, 2), 1: both(1, 1)})
    assert [(group.name, group.ranks, group.sure) for group in groups] == [
        ("0", (0, 1), True),
        ("3", (0,), True),
        ("3", (1,), True),
        ("0/gloo", (0, 1), True),
    ]
    assert [part.called for part in groups[0].parts] == [9, 9]
    assert (groups[3].lowest, groups[3].waits[1].missing) == ((1,), (1,))


def test_the_parts_of_a_coalesced_call_are_done_when_it_is() -> None:
    parts = [entry(3, done=False, backend="nccl"), entry(3, "coalesced", backend="nccl")]
    assert rank_dumps.merged_recorders({0: text(parts)})[0].waits == ()


@for_each("wrong", ["", "[]", "no json"])
def test_other_text_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError):
        rank_dumps.merged_recorders({0: wrong})
