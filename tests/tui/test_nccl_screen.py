"""What NCCL says, as rows: cards of nodes and communicators, the matrix at each size, rings and init."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import scripted as play
import told
from each import for_each
from test_rows import frame_of, line_of, text_of

from distui.presets.finding import Finding
from distui.runners.diagnosis.nccl_facts import Communicator, Init, NcclFacts, Pair
from distui.runners.run.model import CaughtUp, Event
from distui.tui.nccl_sources import NodeFacts, merged
from distui.tui.rows.communicators import chosen_of, communicator_rows, late_ranks, missing
from distui.tui.rows.glyphs import row_width, to_ascii
from distui.tui.rows.nccl import statement_rows, title, why_empty
from distui.tui.rows.nccl_init import bars, init_rows
from distui.tui.rows.nccl_map import LETTERS, grid, letter, map_rows, matrix_rows, wanted_width
from distui.tui.rows.nccl_nodes import node_groups, node_rows
from distui.tui.rows.nccl_rings import crossings, ring_rows


def matrix(one: Communicator, width: int) -> list[str]:
    return [line_of(told.row) for told in matrix_rows(one, width, {})]


def cards(facts: NcclFacts, width: int = 100) -> str:
    one = chosen_of(facts, None)
    assert one is not None
    return text_of([said.row for said in statement_rows(frame_of(play.running()), facts, one, width)])


# ---- cards


def test_nodes_that_say_the_same_share_a_card_at_any_number() -> None:
    groups = node_groups(told.facts(told.communicator(128, 8)))
    assert [len(group.nodes) for group in groups] == [128]
    shown = cards(told.facts(told.communicator(128, 8)))
    assert "c1, c2, c3, c4 and 124 more  128 nodes alike  ranks 0-1023" in shown


def test_what_differs_between_nodes_is_marked_with_what_the_others_say() -> None:
    shown = cards(told.uneven())
    for part in (
        "▲ NCCL        2.27.3   the others: 2.29.7+cuda12.9",
        "▲ network     Socket   the others: IB",
        "▲ HCAs        n/a   the others: mlx5_0:1, mlx5_1:1 (IB)",
        "▲ variable    NCCL_IB_HCA is not set   the others: mlx5",
    ):
        assert part in shown
    assert "▲ bootstrap" not in shown  # other addresses on the same interface are no difference


def test_secrets_in_variables_are_masked() -> None:
    facts = told.facts(nodes=(told.node("n001", env={"NCCL_SECRET_TOKEN": "hush"}),))
    shown = cards(facts)
    assert "hush" not in shown
    assert "NCCL_SECRET_TOKEN=***" in shown


def test_a_late_and_an_unheard_rank_stand_out() -> None:
    stages = {**dict.fromkeys(range(7), "connected"), 2: "started"}
    one = told.communicator(stages=stages)
    assert late_ranks(one) == {"started": (2,)}
    assert missing(one) == (7,)
    shown = cards(told.facts(one))
    assert "▲ behind      rank 2: started, not complete" in shown
    assert "▲ missing     no line names rank 7" in shown


def test_nobody_is_late_while_all_are_on_their_way() -> None:
    assert late_ranks(told.communicator(stages=dict.fromkeys(range(8), "started"))) == {}


def test_the_communicator_that_is_not_ready_is_chosen_and_many_are_counted() -> None:
    late = told.communicator(1, 4, id="0xlate", stages={0: "complete", 1: "started"})
    others = tuple(told.communicator(1, 8, id=f"0x{at}") for at in range(20))
    facts = told.facts(others[0], communicators=(*others, late))
    chosen = chosen_of(facts, None)
    assert chosen is late
    named = chosen_of(facts, "0x7")
    assert named is not None
    assert named.id == "0x7"
    shown = text_of([said.row for said in communicator_rows(facts, late, 100)])
    assert "… 15 more, all alike in their stages: 15 of 8 ranks" in shown
    assert "0xlate ◆" in shown


def test_a_card_rests_on_its_line() -> None:
    facts = told.facts()
    lines = {line_of(said.row).split()[0]: said.line for said in node_rows(facts, 80)}
    assert lines["network"] == facts.raw["network:n001"]


# ---- the matrix


@for_each(
    ("kind", "wanted"),
    [
        ("P2P/CUMEM", "P"), ("P2P/direct pointer", "P"), ("SHM", "S"), ("SHM/direct/direct", "S"),
        ("NET/IB/GDRDMA", "G"), ("NET/IB", "N"), ("NET/AWS Libfabric/GDRDMA", "G"), ("NET/Socket", "T"),
        ("COLLNET", "C"), ("P2P/IPC and SHM", "S"), ("something new", "?"),
    ],
)  # fmt: skip
def test_each_transport_has_a_letter(kind: str, wanted: str) -> None:
    assert letter(kind) == wanted


def test_at_eight_ranks_every_pair_is_shown() -> None:
    rows = matrix(told.communicator(), 78)
    assert "P  P2P/CUMEM  56 pairs" in rows[0]
    assert rows[-8].split() == ["r0", "\\", *"PPPPPPP"]
    assert rows[-1].split() == ["r7", *"PPPPPPP", "\\"]


def test_sixteen_ranks_on_two_nodes_are_parted_by_node() -> None:
    rows = matrix(told.communicator(2, 8), 78)
    first = next(row for row in rows if row.startswith("c1 r0"))
    assert first == "c1 r0  \\ P P P P P P P  G · · · · · · · "


def test_a_thousand_ranks_are_folded_to_nodes_where_they_fit() -> None:
    one = told.communicator(128, 8)
    made = grid(one, 200)
    assert (made.noun, len(made.units)) == ("node", 128)
    assert wanted_width(one) <= 136
    rows = matrix(one, 136)
    assert next(row for row in rows if row.startswith("c1 ")).split()[1].startswith("PG·")
    assert max(map(len, rows)) <= 136


@for_each("width", [40, 78, 100])
def test_still_less_room_folds_nodes_and_says_the_worst(width: int) -> None:
    one = told.communicator(128, 8)
    made = grid(one, width)
    assert made.noun != "node"
    rows = matrix(one, width)
    assert max(map(len, rows)) <= width
    assert any("gG" in row for row in rows)  # inside: some P2P, the worst is the network
    assert "a small letter: the worst of several kinds" in " ".join(" ".join(rows).split())


def test_one_worse_pair_is_named_and_in_a_folded_cell_it_wins() -> None:
    one = told.communicator(16, 8)
    pairs = tuple(
        msgspec.structs.replace(pair, kind="NET/Socket") if (pair.source, pair.target) == (17, 25) else pair
        for pair in one.pairs
    )
    bad = msgspec.structs.replace(one, pairs=pairs)
    rows = matrix(bad, 78)
    assert next(row for row in rows if row.startswith("c3 ")).split()[4] == "t"
    assert any("worse than the usual: c3 → c4 NET/Socket" in row for row in rows)
    few = told.communicator(pairs=(*told.communicator().pairs[1:], Pair(0, 1, "SHM")))
    assert any("worse than the usual: r0 → r1 SHM" in row for row in matrix(few, 78))


def test_a_legend_row_rests_on_the_line_of_its_kind() -> None:
    one = told.communicator()
    line = told.line(0, 9, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    (first, *_) = matrix_rows(one, 78, {f"pair:{one.id}:P2P/CUMEM": line})
    assert first.line == line


def test_no_pairs_is_a_sentence_and_unknown_sizes_show_what_is_known() -> None:
    assert "NCCL_DEBUG=INFO" in " ".join(matrix(told.communicator(pairs=()), 78))
    loose = Communicator("", pairs=(Pair(16, 24, "NET/Socket"), Pair(34, 33, "NET/Socket")))
    assert [unit.label for unit in grid(loose, 78).units] == ["r16", "r24", "r33", "r34"]


def test_letters_need_neither_colour_nor_more_than_ascii() -> None:
    assert LETTERS.isascii()
    for one in (told.communicator(), told.communicator(2, 4), told.communicator(128, 8)):
        rows = [said.row for said in map_rows(told.facts(one), one, 100)]
        assert to_ascii(text_of(rows)).isascii()


# ---- rings and init


def test_rings_are_folded_by_node_and_equal_ones_told_once() -> None:
    one = told.communicator(2, 4, rings=((0, 1, 2, 3, 4, 5, 6, 7), (4, 5, 6, 7, 0, 1, 2, 3)), ring_count=2)
    assert text_of(ring_rows(one, 78)) == "ring 0,1      c1 [0 1 2 3] → c2 [4 5 6 7] → c1"


def test_a_ring_that_goes_to_and_fro_is_marked() -> None:
    one = told.communicator(2, 4, rings=((0, 4, 1, 5, 2, 6, 3, 7),))
    assert crossings(one.rings[0], {rank: f"c{rank // 4}" for rank in range(8)}) == (8, 2)
    assert "enters nodes 8 times a round; 2 would do" in text_of(ring_rows(one, 78))


def test_a_thousand_ranks_in_a_ring_stay_three_rows() -> None:
    rows = ring_rows(told.communicator(128, 8, rings=(tuple(range(1024)),), ring_count=1), 78)
    assert len(rows) == 3
    assert "c1 [×8] → c2 [×8]" in line_of(rows[0])


def test_init_is_drawn_from_the_first_line_to_ready() -> None:
    one = Communicator(
        "0x1", nranks=2, hosts={"a": (0, 1)}, stages={0: "complete", 1: "complete"},
        began={0: 100.0, 1: 101.0},
        inits=(Init(0, 2.0, {"bootstrap": 1.5, "topo": 0.5}), Init(1, 1.0, {"bootstrap": 0.5, "topo": 0.5})),
    )  # fmt: skip
    first, second, *_ = [line_of(row) for row in init_rows(one, 60)]
    room = first.count("█")
    assert second.count("█") == pytest.approx(room / 2, abs=1)
    assert second.index("█") - first.index("█") == pytest.approx(room / 2, abs=1)
    assert first.rstrip().endswith("2.00 s")


def test_who_is_not_ready_has_an_open_bar_and_a_thousand_have_one_a_node() -> None:
    late = chosen_of(told.uneven(), None)
    assert late is not None
    shown = text_of(init_rows(late, 78))
    assert "bootstrapped, not complete" in shown
    assert "░" in shown
    assert len(bars(told.communicator(128, 8))) == 24
    assert {bar.label for bar in bars(told.communicator(3, 8))} == {"c1", "c2", "c3"}


def test_without_times_and_without_timings_it_is_said() -> None:
    assert "NCCL 2.19 and newer" in text_of(init_rows(told.communicator(began={}, inits=()), 78))
    assert "no timestamps in the log" in text_of(init_rows(told.communicator(began={}), 78))


# ---- where it comes from, and why there is nothing


@for_each("make", [told.facts, told.uneven, lambda: told.facts(told.communicator(128, 8))])
def test_nothing_is_wider_than_its_pane(make: Callable[[], NcclFacts]) -> None:
    facts = make()
    one = chosen_of(facts, None)
    assert one is not None
    frame = frame_of(told.running(facts, *told.findings()))
    widest = {}
    for width in (58, 78, 118, 198):
        shown = (*statement_rows(frame, facts, one, width), *map_rows(facts, one, width))
        widest[width] = max(row_width(said.row) for said in shown)
    assert all(most <= width for width, most in widest.items()), widest


def test_what_no_line_names_is_no_zero() -> None:
    """Lines of COLL alone name a communicator, but no node."""
    comm = told.communicator(nnodes=None, hosts={})
    facts = told.facts(comm, nodes=())
    assert title(facts) == "NCCL · 1 communicator · 12,034 lines"
    rows = [said.row for said in statement_rows(frame_of(told.running(facts)), facts, comm, 78)]
    assert line_of(rows[0]).startswith("communicators"), "no empty row under the cursor"
    assert "8 ranks on" not in text_of(rows)
    assert "0 hosts" not in text_of(rows)


def test_only_findings_of_nccls_logs_are_on_top() -> None:
    """The banner and the findings pane have those of GPUs, disks, notifications and the script."""
    ids = (
        "gpu-lost:gpu3",
        "xid-79:gpu3",
        "loss-diverges",
        "disk-low",
        "notify-failed",
        "pt-watchdog",
        "expect-gdr",
    )
    raised = [Finding(name, "error", f"text of {name}") for name in ids]
    facts = told.facts()
    rows = statement_rows(frame_of(told.running(facts, *raised)), facts, chosen_of(facts, None), 120)
    shown = text_of([row.row for row in rows])
    assert [name for name in ids if f"text of {name}" in shown] == ["pt-watchdog", "expect-gdr"]


def test_what_is_not_read_yet_is_said() -> None:
    shown = cards(told.facts(behind=3 << 20, sampled=True))
    assert "3.0M of NCCL's logs are not read yet" in shown
    assert "grew faster than they are read" in shown


def test_documents_of_nodes_become_one_and_nonsense_is_left_out() -> None:
    one, two = (
        msgspec.json.encode(told.facts(told.communicator(1, 4), nodes=(told.node(host),))) for host in "ab"
    )
    both = merged([one, b'{"nodes": 3}', two])
    assert both is not None
    assert [node.host for node in both.nodes] == ["a", "b"]
    assert merged([b"{"]) is None


def test_facts_are_read_again_only_when_a_node_says_something_new() -> None:
    state = frame_of(told.running(told.facts())).state
    kept = NodeFacts()
    first = kept.of(state)
    assert first is not None
    assert kept.of(state) is first
    state.nodes[0].nccl = msgspec.json.encode(told.facts(lines=7))
    again = kept.of(state)
    assert again is not None
    assert again.lines == 7


def test_a_job_that_is_only_watched_is_not_asked_to_raise_its_level() -> None:
    state = frame_of(play.running()).state
    state.run = "watch-4711"
    assert why_empty(state).startswith("distui did not start this job: ")


@for_each(
    ("events", "wanted"),
    [
        (play.running(2, gpu=False), "gloo: no NCCL data"),
        (play.running(), "NCCL_DEBUG is WARN, and NCCL's statements need INFO: press d"),
        (play.running()[:3], "connecting…"),
        ([*play.running()[:1], (1.0, CaughtUp(1))], "No rank has started yet"),
        (play.finished(), "Nothing of NCCL is in the logs"),
    ],
)
def test_an_empty_screen_says_why(events: list[tuple[float, Event]], wanted: str) -> None:
    assert wanted in why_empty(frame_of(events).state)
