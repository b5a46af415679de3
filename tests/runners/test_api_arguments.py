"""What the calls of distui.runners.api refuse, with which exception and words: nothing is started or reached."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from distui.presets.finding import Finding
from distui.presets.request import REQUEST_OPTIONS
from distui.presets.sanitize import clean_text
from distui.runners import api
from distui.runners.api import arguments
from distui.runners.logs.choice import check_there
from distui.runners.node import agentless, local_agent, run_following
from distui.runners.run import run_directories
from distui.runners.run.errors import NoSuchRunError, RunError, UnknownOutcomeError, UnreachableError
from distui.runners.run.model import AttemptStarted, FindingRaised, RankPlace, RunPhase, Stamped
from distui.runners.run.opened_logs import LogError
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import LinkError, UnansweredError

Call = Callable[[api.Run], object]
HUGE = 10**5000
"""More digits than Python turns into text."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> api.Run:
    """A run that is nowhere: a call that goes beyond its arguments says so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    record = run_directories.new_record("nowhere")
    return api.Run(run_directories.Entry(tmp_path / record.run, record))


def launch(**options: Any) -> Call:
    return lambda run: api.launch(**{"script": "absent.py", "preset": "ddp", **options})


def launch_words(*words: Any) -> Call:
    return lambda run: api.launch("absent.py", *words)


def execute(*words: Any, **options: Any) -> Call:
    return lambda run: api.execute(*words, **options)


def on(verb: str, *words: Any, **options: Any) -> Call:
    return lambda run: getattr(run, verb)(*words, **options)


def refused(call: Call, run: api.Run, kind: type[Exception], words: str) -> str:
    """Assert that it raises exactly that, with one printable line that begins with `words` and says what to pass."""
    with pytest.raises(Exception) as caught:
        call(run)
    text = str(caught.value)
    assert type(caught.value) is kind, repr(caught.value)
    assert text.startswith(words), text
    assert clean_text(text, 10_000) == text
    assert not text.endswith("."), text
    assert len(text) < 300
    return text


TYPES = [
    (launch(script=3), "script is of type int: pass the path"),
    (launch(script=b"train.py"), "script is of type bytes"),
    (launch(script=None), "script is None"),
    (launch(task="t.yaml"), "task is not an option of launch: pass fields of distui.presets.request.Request"),
    (launch(gracs_s=1), "gracs_s is not an option of launch: pass"),
    (execute("true", gpus="H100:8"), "gpus is not an option of exec: pass"),
    (launch(spot=1), "spot is of type int: pass True or False"),
    (launch(restart_limit="3"), "restart_limit is of type str: pass a whole number"),
    (launch(grace_s="3"), "grace_s is of type str: pass seconds"),
    (launch(signals="loss"), "signals is of type str: pass a list of texts"),
    (launch(mounts={"/d": 3}), "mounts['/d'] is of type int: pass a dict of texts"),
    (launch(env_on={"a": 3}), "env_on['a'] is of type int: pass a dict of dicts"),
    (launch(any_of=[["aws"]]), "any_of[0] is of type list: pass a list of dicts"),
    (launch(save_on=3), "save_on is of type int: pass a text"),
    (launch_words("--lr", 1e-3), "args[1] is of type float: pass the words"),
    (launch_words(["--lr", "1e-3"]), "args[0] is of type list"),
    (launch(preset=None), "preset is None: pass the name of a preset"),
    (launch(preset=5), "preset is of type int"),
    (launch(overrides={"x": 1}), "overrides is of type dict: pass a list"),
    (launch(overrides="mesh.tp=2"), "overrides is of type str: pass a list"),
    (launch(overrides=[2]), "overrides[0] is of type int"),
    (launch(overrides=None), "overrides is None"),
    (launch(name=7), "name is of type int"),
    (launch(nproc_per_node=1.5), "nproc_per_node is of type float: pass a number of ranks"),
    (launch(nproc_per_node=True), "nproc_per_node is of type bool"),
    (launch(nproc_per_node=[2]), "nproc_per_node is of type list"),
    (launch(nnodes=2.0), "nnodes is of type float"),
    (launch(hosts=3), "hosts is of type int: pass a list of host names"),
    (launch(hosts="a,b"), "hosts is of type str"),
    (launch(hosts=[3]), "hosts[0] is of type int"),
    (launch(env=["A=1"]), "env is of type list: pass a dict of texts"),
    (launch(env="A=1"), "env is of type str"),
    (launch(env={b"A": "1"}), "a name in env is of type bytes"),
    (launch(env={"A": 1}), "env['A'] is of type int"),
    (launch(env={"A": None}), "env['A'] is None"),
    (launch(nccl=["DEBUG=INFO"]), "nccl is of type list"),
    (launch(nccl={"DEBUG": 1}), "nccl['DEBUG'] is of type int"),
    (launch(python=3), "python is of type int: pass the path of an interpreter"),
    (execute(3), "command[0] is of type int: pass a program and its words one by one"),
    (execute(["sh", "-c", "true"]), "command[0] is of type list"),
    (execute("true", name=7), "name is of type int"),
    (execute("true", env=["A=1"]), "env is of type list"),
    (lambda run: api.attach(3), "run is of type int: pass a name"),  # type: ignore[arg-type]
    (on("wait", None), "until is None: pass"),
    (on("wait", 3), "until is of type int"),
    (on("wait", "done", timeout="x"), "timeout is of type str: pass seconds"),
    (on("wait", "done", timeout=True), "timeout is of type bool"),
    (on("logs", ranks=1), "ranks is of type int: pass a list"),
    (on("logs", ranks=0), "ranks is of type int: pass a list"),
    (on("logs", ranks="01"), "ranks is of type str"),
    (on("logs", ranks=["0"]), "ranks[0] is of type str"),
    (on("logs", ranks=[0.0]), "ranks[0] is of type float"),
    (on("logs", ranks=None), "ranks is None"),
    (on("logs", streams="out"), "streams is of type str"),
    (on("logs", streams=[1]), "streams[0] is of type int"),
    (on("logs", attempt="1"), "attempt is of type str"),
    (on("restart", env=["A=1"]), "env is of type list"),
    (on("restart", env="A=1"), "env is of type str"),
    (on("restart", env={"A": 1}), "env['A'] is of type int"),
    (on("restart", unset="ABC"), "unset is of type str: pass a list"),
    (on("restart", unset=[3]), "unset[0] is of type int"),
    (on("restart", unset={"A": "1"}), "unset is of type dict"),
    (launch(notify="team"), "notify is of type str: pass a list of channels"),
    (execute("true", notify=[3]), "notify[0] is of type int: pass a list of channels"),
    (on("restart", reachable="no"), "reachable is of type str: pass True or False"),
    (on("profile", ranks="0,1"), "ranks is of type str"),
    (on("profile", steps="3"), "steps is of type str: pass a number of optimizer steps"),
    (on("profile", out=3), "out is of type int: pass the path of a directory"),
    (on("stop", "5"), "grace_s is of type str: pass seconds"),
    (on("metrics", 3), "metrics[0] is of type int: pass names of metrics"),
    (on("metrics", begin="10m"), "begin is of type str: pass unix seconds"),
    (on("nccl", 3), "level is of type int: pass a level"),
    (on("signal", 10), "signal is of type int: pass the name of a signal"),
    (on("dump", ranks=0), "ranks is of type int"),
    (on("export", 3), "file is of type int: pass the path of a file"),
    (on("note", 3), "text is of type int: pass a text"),
    (on("tag", ["a"]), "add[0] is of type list: pass tags one by one"),
    (on("rerun", env=["A=1"]), "env is of type list"),
    (lambda run: api.plan(3), "script is of type int"),  # type: ignore[arg-type]
    (lambda run: api.doctor(hosts="a"), "hosts is of type str"),
    (lambda run: api.advise(8), "gpus is of type int"),  # type: ignore[arg-type]
    (lambda run: api.prune(keep="3"), "keep is of type str: pass a whole number"),  # type: ignore[arg-type]
    (lambda run: api.diff("a", 3), "b is of type int: pass a run"),  # type: ignore[arg-type]
]  # fmt: skip
"""Calls with something of a wrong type, and how their sentence begins."""

VALUES = [
    (launch(script=""), "script is empty"),
    (launch(script="a\0b"), "script holds a NUL"),
    (launch(script="\udcff.py"), "script is not UTF-8 text"),
    (launch_words("\udcff"), "args[0] is not UTF-8 text"),
    (launch(preset=""), "preset is empty"),
    (launch(preset="\udcff"), "preset is not UTF-8 text"),
    (launch(overrides=["\udcff=1"]), "overrides[0] is not UTF-8 text"),
    (launch(name=""), "name is empty"),
    (launch(name="a/b"), "name 'a/b': use"),
    (launch(nproc_per_node=-1), "nproc_per_node is -1"),
    (launch(nproc_per_node=HUGE), "nproc_per_node is so large a number"),
    (launch(nproc_per_node=""), "nproc_per_node is empty"),
    (launch(nnodes=-1), "nnodes is -1"),
    (launch(hosts=["a,b"]), "host 'a,b' is not a host name"),
    (launch(hosts=[""]), "hosts[0] is empty"),
    (launch(hosts=["a", "a"]), "hosts names a more than once"),
    (launch(env={"A\nB": "1"}), "'A\\nB' is not a valid name"),
    (launch(env={"A=B": "1"}), "'A=B' is not a valid name"),
    (launch(env={"": "1"}), "'' is not a valid name"),
    (launch(env={"A": "x\0"}), "env['A'] holds a NUL"),
    (launch(env={"A": "\udcff"}), "env['A'] is not UTF-8 text"),
    (launch(nccl={"NO SUCH": "1"}), "'NO SUCH' is not a valid name"),
    (launch(python=""), "python is empty"),
    (execute("true", notify=[""]), "notify[0] is empty"),
    (execute("true", notify=["https://hooks.example/T0/s3cret"]), "--notify takes the name of a channel"),
    (execute("true", notify=["off", "terminal"]), "--notify off excludes every channel"),
    (execute(), "command is empty: pass a program"),
    (execute(""), "command[0] is empty"),
    (execute("true", "a\0"), "command[1] holds a NUL"),
    (on("wait", "foo"), "until is 'foo': pass \"running\", \"healthy\" or \"done\""),
    (on("wait", "x" * 999), "until is 'xxx"),
    (on("wait", timeout=-1), "timeout is -1: pass seconds from 0 on"),
    (on("wait", timeout=math.nan), "timeout is nan"),
    (on("wait", timeout=math.inf), "timeout is inf"),
    (on("wait", timeout=HUGE), "timeout is so large a number"),
    (on("logs", ranks=[-1]), "ranks[0] is -1"),
    (on("logs", streams=["out", "zzz"]), "streams[1] is 'zzz': pass a list of \"out\""),
    (on("logs", attempt=-1), "attempt is -1"),
    (on("restart", env={"A\nB": "1"}), "'A\\nB' is not a valid name"),
    (on("restart", env={"A": "x\0"}), "env['A'] holds a NUL"),
    (on("restart", env={"A": "\udcff"}), "env['A'] is not UTF-8 text"),
    (on("restart", env={"\udcff": "1"}), "a name in env is not UTF-8 text"),
    (on("restart", unset=["A\nB"]), "'A\\nB' is not a valid name"),
    (on("restart", unset=["A=1"]), "'A=1' is not a valid name"),
    (on("restart", unset=[""]), "'' is not a valid name"),
    (on("restart", env={"A": "1"}, unset=["A"]), "--unset A is also set"),
    (on("restart", env={"NCCL_DEBUG_FILE": "x"}), "NCCL_DEBUG_FILE is set by the runner"),
    (on("restart", env={"A": "x" * 200_000}), "A has 200003 bytes"),
    (on("restart", env={f"A{n}": "x" * 100_000 for n in range(9)}), "these changes together take"),
    (on("profile", steps=0), "a profile has 1 to 100 steps, not 0"),
    (on("profile", ranks=range(65)), "a profile of 65 ranks is too much"),
    (on("profile", timeout=-1), "timeout is -1"),
    (on("profile", out=""), "out is empty"),
    (on("stop", -1), "grace_s is -1: pass seconds from 0 on"),
    (on("stop", math.nan), "grace_s is nan"),
    (on("metrics", begin=math.inf), "begin is inf: pass unix seconds"),
    (on("metrics", "no.such"), "there is no metric 'no.such'"),
    (on("dump", "heap"), "what is 'heap': pass \"stacks\""),
    (on("tag", "a b"), ""),
    (on("nccl", "LOUD"), "'LOUD' is not a level"),
    (on("signal", "NONE"), "there is no signal NONE"),
    (lambda run: api.lint_files(), "files is empty: pass paths of files"),
    (lambda run: api.doctor(size_mib=0), "--size 0"),
    (lambda run: api.advise("8xA100-80GB", params="7B", format="int4"), "--format int4: choose"),
]  # fmt: skip
"""Calls with a value that cannot be meant, and how their sentence begins."""


def test_a_wrong_type_is_a_type_error_that_says_what_to_pass(run: api.Run) -> None:
    for call, words in TYPES:
        assert ": pass " in refused(call, run, TypeError, words)


def test_a_wrong_value_is_a_run_error(run: api.Run) -> None:
    for call, words in VALUES:
        refused(call, run, RunError, words)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (launch(preset="nope"), "There is no preset 'nope'"),
        (launch(overrides=["x"]), "--set x: write it as"),
        (launch(nproc_per_node=0, script=__file__), "nproc_per_node 0 starts no rank"),
        (launch(nccl={"DEBUG": "LOUD"}), "'LOUD' is not a level"),
        (launch(env={"RANK": "1"}, script=__file__), "RANK is computed"),
        (launch(script=Path("nope.py")), "script not found: nope.py"),
        (launch(script="a" * 5000), ""),
        (on("restart", env={"RANK": "1"}), "RANK is computed"),
    ],
)
def test_what_a_plan_refuses_is_a_run_error(run: api.Run, call: Call, words: str) -> None:
    """In the words of the command line."""
    with pytest.raises(RunError, match=f"^{re.escape(words)}") as caught:
        call(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_an_empty_name_is_no_run(run: api.Run, name: str) -> None:
    refused(lambda _: api.attach(name), run, NoSuchRunError, "the name of the run is empty")


def test_no_sentence_shows_the_value_of_a_variable(run: api.Run) -> None:
    for env in ({"A": "hunter2\0"}, {"A\n": "hunter2"}, {"A": b"hunter2"}, {"A": ["hunter2"]}):
        with pytest.raises((RunError, TypeError)) as caught:
            run.restart(env=env)  # type: ignore[arg-type]
        assert "hunter2" not in str(caught.value)


class Whole:
    """What counts as a whole number elsewhere, as numpy's do."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


def test_what_is_meant_is_taken() -> None:
    for name, value, meant in [
        ("script", PurePosixPath("train.py"), "train.py"),
        ("python", Path("/usr/bin/python3"), "/usr/bin/python3"),
        ("args", ("--data", Path("x"), ""), ("--data", "x", "")),
        ("command", (Path("/bin/sh"), "-c", ""), ("/bin/sh", "-c", "")),
        ("nproc_per_node", "gpu", "gpu"),
        ("nproc_per_node", Whole(2), 2),
        ("nnodes", "2:4", "2:4"),
        ("ranks", range(2), (0, 1)),
        ("ranks", {3}, (3,)),
        ("env", None, {}),
        ("env", {"lower_1": ""}, {"lower_1": ""}),
        ("nccl", {"DEBUG": "INFO"}, {"NCCL_DEBUG": "INFO"}),
        ("nccl", {"NCCL_IB_HCA": "=mlx5_0"}, {"NCCL_IB_HCA": "=mlx5_0"}),
        ("timeout", 0, 0.0),
        ("timeout", None, None),
        ("grace_s", 2.5, 2.5),
        ("streams", ["log"], ("log",)),
        ("run", None, None),
        ("unset", ["BASH_FUNC_module%%"], ("BASH_FUNC_module%%",)),
    ]:  # fmt: skip
        (found,) = arguments.checked(**{name: value}).values()
        assert found == meant, name
        assert type(found) is type(meant)


def test_every_argument_of_every_call_has_a_rule() -> None:
    functions = [getattr(api.aio, name) for name in api.aio.__all__ if name != "AsyncRun"]
    methods = [
        call for name, call in vars(api.AsyncRun).items() if inspect.isfunction(call) and name[0] != "_"
    ]
    parameters = [
        each for call in functions + methods for each in inspect.signature(call).parameters.values()
    ]
    named = {each.name: str(each.annotation) for each in parameters}
    for name in named.keys() - {"self", "options", "question"}:
        assert arguments.rule_of(name, named[name]), name
    assert arguments.ARGUMENTS.keys() <= named.keys() | REQUEST_OPTIONS.keys()
    assert all(arguments.rule_of(name) for name in REQUEST_OPTIONS)


def of_two_attempts() -> RunState:
    """Two ranks in attempts 1 and 2."""
    state = RunState()
    for number in (1, 2):
        ranks = tuple(RankPlace(rank, rank) for rank in (0, 1))
        state.apply(Stamped(1.0, AttemptStarted(number, "launch", 2, ranks), seq=number))
    state.name = "job"
    return state


@pytest.mark.parametrize(
    ("ranks", "attempt", "words"),
    [
        ((99,), None, "job: no rank 99, it has ranks 0, 1"),
        ((0, 7), None, "job: no rank 7, it has ranks 0, 1"),
        ((), 77, "job: no attempt 77, it has attempts 1, 2"),
        ((), 0, "job: no attempt 0, it has attempts 1, 2"),
    ],
)
def test_logs_of_what_the_run_never_had_are_refused(
    ranks: tuple[int, ...], attempt: int | None, words: str
) -> None:
    with pytest.raises(RunError, match=f"^{words}$"):
        check_there(of_two_attempts(), [], ranks, attempt)


def test_logs_of_a_rank_of_a_run_that_ended_before_any_are_refused() -> None:
    state = RunState(name="job", phase=RunPhase.FAILED)
    with pytest.raises(RunError, match=r"^job: no rank 9, it has no rank$"):
        check_there(state, [], (9,))
    check_there(state, [])


def test_logs_of_what_the_run_has_or_may_get_are_not_refused() -> None:
    check_there(of_two_attempts(), [], (0, 1), 2)
    check_there(RunState(), [], (99,), 7)  # nothing was started yet


@pytest.mark.parametrize(
    ("raised", "kind"), [(UnansweredError, UnknownOutcomeError), (LinkError, UnreachableError)]
)
def test_a_stop_that_reaches_nobody_is_a_run_error(
    run: api.Run, monkeypatch: pytest.MonkeyPatch, raised: type[Exception], kind: type[Exception]
) -> None:
    async def stop_run(*_: object) -> None:
        raise raised("the link broke")

    monkeypatch.setattr(agentless, "stop_run", stop_run)
    refused(on("stop"), run, kind, "nowhere: the link broke")


def test_logs_that_cannot_be_read_are_a_run_error(run: api.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def linked(*_: object) -> None:
        raise LogError("rank-0.out cannot be read")

    monkeypatch.setattr(local_agent, "linked", linked)
    refused(lambda run: list(run.logs()), run, RunError, "rank-0.out cannot be read")


@pytest.mark.parametrize("until", ["done", "running"])
def test_waiting_for_a_run_that_no_agent_serves_is_a_run_error(
    run: api.Run, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    """Its files end, and it has not: what they say last is no outcome."""
    state = RunState()
    state.apply(Stamped(1.0, FindingRaised(Finding("no-agent", "error", "no agent serves it"))))

    async def follow_until(*_: object) -> RunState:
        return state

    async def with_link(name: str, use: Callable[[None, None], Awaitable[object]]) -> object:
        return await use(None, None)

    monkeypatch.setattr(run_following, "follow_until", follow_until)
    monkeypatch.setattr(local_agent, "with_link", with_link)
    refused(on("wait", until), run, UnreachableError, "no agent serves it")
