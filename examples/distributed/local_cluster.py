"""Several processes on this machine that train together, started again when one of them dies."""

import json
import os
import signal
import socket
import subprocess
import time


class ClusterError(RuntimeError):
    """Processes that ended with an error, again and again."""


def free_ports(count):
    """Ports of loopback that nobody listens to."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def environments(count, backend="tensorflow"):
    """The environment variables by which each process finds the others."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    for number in range(count):
        if backend == "jax":
            yield {
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses[0],
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(number),
                "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            }
        else:
            task = {"type": "worker", "index": number}
            config = {"cluster": {"worker": addresses}, "task": task}
            yield {"TF_CONFIG": json.dumps(config)}


def start(command, count, backend="tensorflow", **variables):
    """Starts the processes; returns them as `subprocess.Popen`, the chief first."""
    return [
        subprocess.Popen(command, env={**os.environ, **own, **variables})
        for own in environments(count, backend)
    ]


def stop(processes):
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    for process in processes:
        process.wait()


def run(command, count, backend="tensorflow", restarts=3, say=print, **variables):
    """Runs a command in several processes until all have succeeded.

    When one dies, the others can not go on without it: all are stopped and started again, and
    take up the training where their backups are.

    Args:
        command: list of str.
        count: how many processes.
        backend: "tensorflow" or "jax".
        restarts: how often to start again at most.
        say: function of a line about what happens.
        **variables: further environment variables.

    Raises:
        ClusterError: if they fail once more than `restarts` allows.
    """
    for attempt in range(restarts + 1):
        processes = start(command, count, backend, **variables)
        say(f"Started processes {' '.join(str(process.pid) for process in processes)}.")
        try:
            while (codes := {process.poll() for process in processes}) != {0}:
                if codes - {None, 0}:
                    break
                time.sleep(0.2)
            else:
                return
        finally:
            stop(processes)
        codes = [process.returncode for process in processes]
        again = "" if attempt == restarts else " All start again."
        say(f"A process has died (exit codes {codes}).{again}")
    raise ClusterError(f"The processes failed {restarts + 1} times.")
