"""The servers of examples/serving as processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests

SERVING = Path(__file__).parents[2] / "examples" / "serving"
SERVERS = {
    "kserve": ["kserve_server.py", "--model_name", "translate", "--http_port"],
    "ray": ["ray_server.py", "--name", "translate", "--port"],
}


class Server:
    """A server as a process, on a port of its own."""

    def __init__(self, kind, models, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        script, *rest = SERVERS[kind]
        self.command = [sys.executable, str(SERVING / script), *rest, str(self.port)]
        self.command += ["--models", str(models), *options]
        self.kind, self.models, self.process = kind, models, None
        self.start()

    def start(self):
        self.log = open(self.models.parent / f"{self.kind}.log", "ab")
        self.process = subprocess.Popen(
            self.command,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        end = time.monotonic() + 180
        while time.monotonic() < end:
            assert self.process.poll() is None, Path(self.log.name).read_text()[-3000:]
            try:
                if requests.get(f"{self.url}/v1/models/translate", timeout=5).status_code == 200:
                    return
            except requests.RequestException:
                time.sleep(0.5)
        raise TimeoutError(Path(self.log.name).read_text()[-3000:])

    def kill(self, number=signal.SIGKILL):
        os.killpg(self.process.pid, number)
        self.process.wait(60)
        self.log.close()
        if self.kind == "ray":  # its processes have sessions of their own
            ray = Path(sys.executable).with_name("ray")
            subprocess.run([ray, "stop", "--force"], capture_output=True, timeout=120)
