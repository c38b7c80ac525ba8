"""Connection to a Ray cluster as a guest: find or start one, reserve resources, and leave it unchanged."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

# before ray is imported: no usage report over the network, no advice on the user's terminal
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "1")
# no record of every job at the head: the log has one
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
# Ray ends a driver a minute after its head is gone; a head is never restarted that fast
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "20")

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from simulator import terminal
from simulator.npu.errors import BadInputError
from tuner.platform.actors import ClusterGoneError, FarmError
from tuner.platform.cpus import usable_cpus
from tuner.platform.module_path import is_python_folder, module_folders
from tuner.platform.ray_files import provide_token, ray_folder, token_path

CONNECT_S = 3.0
HEALTH_S = 6.0  # CONNECT_S + HEALTH_S < 10: a dead address is refused within 10 s
WATCH_S = 1.0
HEAD_MARGIN_S = 2.0  # the driver gives up this time before Ray would end it
HEAD_GONE = "RAY_gcs_rpc_server_reconnect_timeout_s"
STORE_BYTES = 256 << 20  # object store of a local Ray
# open files of its raylet, the process with most of them: measured with 2 to 16 CPUs and 0 to 12 workers
BASE_FILES, FILES_OF_WORKER = 50, 4
# No reports of every process to a missing dashboard.  Workers have the niceness of the driver: with Ray's own 15 they would get only the
# time that other processes leave
SETTINGS = {"task_events_report_interval_ms": 0, "worker_niceness": 0}
MOST_LINES = 10_000  # different lines of actors that are remembered
OPEN_CLUSTER = "TILEFARM_OPEN_CLUSTER"
ONE_THREAD = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Ray runs methods outside the main thread, and glibc gives every thread its own heap, which grows and shrinks in small steps: this slows a
# worker, whose segments are short-lived arrays
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

_ERROR = re.compile(r"[\w.]*(Error|Exception)\b|.*\b(ERROR|No such file|not found|denied)\b")
_RAY_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \S+ [IWEF] \d+ \d+\]|\*\*\* |PC: @|\s*@ +0x")

Say = Callable[[str], None]


class Watch:
    """Watch over the cluster's head and the local raylet.

    Ray silently ends a process whose head has gone, or that calls a raylet that has gone.  So the driver checks here, and ends itself
    earlier. A head may come back: a thread tries it every second, reports that it does not answer, and gives it up a little before Ray
    would.
    """

    def __init__(self, head: str, raylet: str, say: Say = terminal.say) -> None:
        host, _, port = head.rpartition(":")
        self._address, self._head, self._say = (host.strip("[]"), int(port)), head, say
        self._raylet = socket.socket(socket.AF_UNIX)  # silent until the other end is closed
        self._raylet.setblocking(False)
        self._raylet.connect(raylet)
        self._patience_s = max(WATCH_S, float(os.environ[HEAD_GONE]) - HEAD_MARGIN_S)
        self._head_gone = False
        self._stop = threading.Event()
        threading.Thread(target=self._watch, name="head-watch", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._raylet.close()

    def loss(self) -> str | None:
        """Description of the part that does not answer any more, else None."""
        if self._head_gone:
            return f"its head at {self._head} does not answer"
        try:
            self._raylet.recv(1)
        except BlockingIOError:
            return None
        except OSError:  # reset; an orderly end gives no error and no bytes
            pass
        return "the raylet of this computer has ended"

    def answers(self) -> bool:
        """Whether head and raylet answer now: a call to a silent head would wait until Ray ends the process."""
        return self.loss() is None and self._head_answers()

    def _head_answers(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=CONNECT_S).close()
        except OSError:
            return False
        return True

    def _watch(self) -> None:
        silence_begin_s: float | None = None
        reported = False
        while not self._stop.wait(WATCH_S):
            now_s = time.monotonic()
            if not self._head_answers():
                if silence_begin_s is None:
                    silence_begin_s = now_s
                elif not reported:  # at the second silent check
                    reported = True
                    self._say(f"the Ray head at {self._head} does not answer; waiting {self._patience_s:g} s for it")
                self._head_gone = now_s - silence_begin_s >= self._patience_s
            else:
                if reported:
                    self._say(f"the Ray head at {self._head} is back")
                silence_begin_s, reported, self._head_gone = None, False, False


@dataclass(frozen=True)
class Connection:
    """Connection of a driver to Ray.  `owned`: made by this object, so closing it also ends a local cluster.

    environment: `worker_environment` that processes of the cluster have by themselves; {} for a cluster that was not started here.
    """

    owned: bool
    watch: Watch | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def runtime_environment(self) -> dict[str, Any] | None:
        """Ray's environment of an actor; None where processes have it by themselves: Ray starts one for each CPU ahead, and only an actor
        without an environment of its own gets one of them."""
        environment = worker_environment()
        return None if environment == self.environment else {"env_vars": environment}

    @property
    def answers(self) -> bool:
        """Whether the cluster answers: see `Watch.answers`."""
        return self.watch is None or self.watch.answers()

    def check(self) -> None:
        """Raise `ClusterGoneError` if Ray has ended under this driver."""
        if self.watch is not None and (loss := self.watch.loss()):
            raise ClusterGoneError(f"the Ray cluster went away ({loss}); what was measured is kept, --resume goes on with it")

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
        if self.owned and ray.is_initialized():
            ray.shutdown()


def connect(address: str | None = None, local_cpus: int | None = None) -> Connection:
    """Connect to this process's running Ray, else to `address` or RAY_ADDRESS, else to a new local one.

    Raises `BadInputError` within 10 s if nothing answers.
    """
    if ray.is_initialized():
        return Connection(owned=False)
    target = address or os.environ.get("RAY_ADDRESS") or "local"
    option, handler = "--address" if address else "RAY_ADDRESS", signal.getsignal(signal.SIGTERM)
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": logging.ERROR}
    # Ray prints workers' output, and every worker's death, on stdout; programs may read JSON there, and the farm reports deaths itself
    ray._private.worker.print_to_stdstream = ActorOutput()
    # under `uv run` Ray would make a new environment for every worker, without the driver's packages; RAY_ENABLE_UV_RUN_RUNTIME_ENV
    # is read at the import of Ray, which may have happened
    ray._private.ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    if target == "local":
        provide_token()
        environment, cpus, folder = worker_environment(), max(local_cpus or 1, usable_cpus()), ray_folder()
        _provide_open_files(BASE_FILES + FILES_OF_WORKER * cpus, f"Ray with {cpus} workers")
        try:
            with _local_processes_have(environment):
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    _temp_dir=str(folder),
                    _system_config=SETTINGS,
                    **quiet,
                )
        except Exception as error:  # Ray raises `Exception` itself where its processes do not start
            reason, logs = " ".join(str(error).split()).partition(". ")[0], folder / "session_latest" / "logs"
            raise FarmError(f"Ray does not start on this computer ({reason}; logs in {logs}); `--backend serial` needs no Ray") from error
        _tighten_token()
        return _join_cluster(handler, environment)
    if target != "auto":
        require_token(target, option)
        probe_head(target, option)
    try:
        ray.init(address=target, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInputError(f"{option} {target}: no Ray cluster: {' '.join(str(error).split())}") from None
    return _join_cluster(handler)


def _provide_open_files(count: int, user: str) -> None:
    """Permit this process and those that it starts to open `count` files.  Raises `BadInputError` where the system does not.

    With too few, a daemon of Ray waits for itself until its driver gives up after half a minute.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BadInputError(
            f"{user} has {count} open files, and this process may have {hard}; raise the limit (`ulimit -n`) or ask for fewer"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


@contextmanager
def _local_processes_have(environment: Mapping[str, str]) -> Iterator[None]:
    """Start a local cluster's processes with an environment of their own.

    `ray.init` has no parameter for it, and this process's environment is not changed, since other threads read it.
    """
    parameters = ray._private.parameter.RayParams
    paths = environment["PYTHONPATH"].replace("${PYTHONPATH}", os.environ.get("PYTHONPATH", "")).rstrip(os.pathsep)
    ray._private.parameter.RayParams = partial(parameters, env_vars={**environment, "PYTHONPATH": paths})
    try:
        yield
    finally:
        ray._private.parameter.RayParams = parameters


def _join_cluster(handler: Any, environment: Mapping[str, str] | None = None) -> Connection:
    """Connection after joining.  handler: earlier handler of SIGTERM; Ray's own ends a driver at once, with the signal's number as exit
    code."""
    if handler not in (None, signal.SIG_DFL) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    watch = Watch(ray.get_runtime_context().gcs_address, ray._private.worker.global_worker.node.raylet_socket_name)
    return Connection(owned=True, watch=watch, environment=environment or {})


class ActorOutput:
    """Printer of what actors print, on stderr, each line once: a warning of a library comes from every actor.

    Messages of Ray itself are dropped, also in the output of an actor.  Lines beyond MOST_LINES are printed as they come.
    """

    def __init__(self, say: Say = terminal.say) -> None:
        self._say, self._lines = say, set[str]()

    def __call__(self, data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        """Print a message of Ray's log monitor; of actors alone, which have a name."""
        del ignore_prefix
        for line in data["lines"] if data.get("actor_name") else ():
            if line not in self._lines and not _RAY_LINE.match(line):
                if len(self._lines) < MOST_LINES:
                    self._lines.add(line)
                self._say(f"worker {data['pid']}@{data['ip']}: {line}")


def require_token(address: str, option: str = "--address") -> None:
    """Refuse an open cluster on a network: everyone with access to its port can run code on every node."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = all(ip_address(info[4][0]).is_loopback for info in socket.getaddrinfo(host, None))
    except OSError:  # `probe_head` reports the fault
        return
    if local or _is_mine(host) or os.environ.get("RAY_AUTH_MODE") == "token" or os.environ.get(OPEN_CLUSTER) == "1":
        return
    raise BadInputError(
        f"{option} {address}: not on this computer, and without a token; set RAY_AUTH_MODE=token there and here "
        f"(`ray get-auth-token`), or {OPEN_CLUSTER}=1 where everybody on the network may run code on it"
    )


def _is_mine(host: str) -> bool:
    """Whether an address belongs to this computer: such an address can be bound."""
    try:
        with socket.socket() as trial:
            trial.bind((socket.gethostbyname(host), 0))
        return True
    except OSError:
        return False


def probe_head(address: str, option: str = "--address") -> None:
    """Refuse an address that does not answer: Ray itself tries for a minute, then ends the process.  option: source of the address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        raise BadInputError(f"{option} {address!r}: expected host:port of a Ray head, 'auto' or 'local'")
    refusal = f"{option} {address}: no Ray head answers there; start one with `ray start --head`, or leave {option} out"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise BadInputError(f"{refusal} ({error})") from None
    check = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        process = subprocess.run(check, timeout=HEALTH_S, capture_output=True, text=True, check=False)
    except subprocess.TimeoutExpired:
        raise BadInputError(f"{refusal} (not within {HEALTH_S:.0f} s)") from None
    if process.returncode and "AuthToken" in process.stderr:
        # Ray's rule, kept: a token is never sent to an address that was merely given
        raise BadInputError(f"{option} {address}: the Ray head there wants a token; set RAY_AUTH_MODE=token (see `ray get-auth-token`)")
    if process.returncode:
        raise BadInputError(refusal)


def _tighten_token() -> None:
    """Restrict the token file: Ray leaves the secret of its local clusters readable by every user."""
    token = token_path()
    if token is not None and token.is_file() and token.stat().st_uid == os.getuid() and token.stat().st_mode & 0o077:
        token.chmod(0o600)


def cluster_cpus() -> tuple[int, int]:
    """Number of free CPUs and of all CPUs of the cluster."""
    return int(ray.available_resources().get("CPU", 0)), int(ray.cluster_resources().get("CPU", 0))


def reserve_group(workers: int, wait_s: float, name: str, say: Say = terminal.say, resource: str | None = None) -> Any:
    """Reserve a placement group with a CPU (and one unit of a custom `resource`) per worker.

    Reports a wait; raises `BadInputError` without resources within `wait_s` seconds.
    """
    bundle = {"CPU": 1.0} | ({resource: 1.0} if resource else {})
    group = placement_group([bundle] * workers, strategy="PACK", name=name)
    end_s = time.monotonic() + wait_s
    patience_s = 1.0  # a cluster with free resources answers earlier, without a message
    while not group.wait(timeout_seconds=max(0.0, min(patience_s, end_s - time.monotonic()))):
        free, total = cluster_cpus()
        if time.monotonic() >= end_s:
            remove_placement_group(group)
            raise BadInputError(
                f"--workers {workers}: no room within {wait_s:g} s (free {free} of {total} CPUs); ask for fewer, or a longer --wait"
            )
        say(f"waiting for {workers} CPUs (free {free} of {total})")
        patience_s = min(30.0, patience_s * 2)
    return group


def start_trouble() -> str:
    """Reason why workers do not start: the last error in Ray's logs on this computer, else the folder of the logs."""
    logs = Path(ray._private.worker.global_worker.node.get_logs_dir_path())
    names = ("worker-*.err", "runtime_env_setup-*.log", "raylet.err")
    for path in sorted((path for name in names for path in logs.glob(name)), key=lambda path: path.stat().st_mtime, reverse=True):
        with path.open(errors="replace") as file:
            errors = [line.strip() for line in file if _ERROR.match(line)]
        if errors:
            return f"{errors[-1]} ({path})"
    return f"Ray's logs are in {logs}"


def release_group(group: Any) -> None:
    """Release a reservation."""
    if ray.is_initialized():
        remove_placement_group(group)


def worker_environment() -> dict[str, str]:
    """Environment of a worker: one thread in every library, one heap, and the modules of this driver.

    The driver's `sys.path` (without Python's own folders) is passed, so that workers import the same tree, installed or not; a
    `working_dir` would be packed and shipped at every start.
    """
    paths = [folder for folder in module_folders() if os.path.isdir(folder)]
    root = str(Path(__file__).resolve().parents[2])
    if root not in paths and not is_python_folder(root):
        paths.insert(0, root)
    # ${...}: keeps a node's own setting
    return {"PYTHONPATH": os.pathsep.join([*paths, "${PYTHONPATH}"]), **dict.fromkeys(ONE_THREAD, "1"), **ONE_HEAP}
