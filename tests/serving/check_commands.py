"""The commands of docs/serving.md, run as they stand there (`make test-serving`)."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]


def commands():
    (block,) = re.findall("```sh\n(.*?)```", (ROOT / "docs/serving.md").read_text("utf-8"), re.S)
    return block.splitlines()


def wait_for(address, process):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert process.poll() is None, "the server has ended"
        try:
            return urllib.request.urlopen(address, timeout=5).read().decode("utf-8")
        except urllib.error.URLError:
            time.sleep(0.5)
    raise TimeoutError(address)


def test_ten_commands(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    running = []

    def start(command, **options):
        return subprocess.Popen(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            text=True,
            start_new_session=True,
            **options,
        )

    *first, last = commands()
    assert len(first) == 9
    try:
        for command in first:
            print(f"$ {command}", flush=True)
            if command.endswith("&"):
                running.append(start(f"exec {command[:-1]}"))
                wait_for("http://127.0.0.1:8501/v1/models/dates", running[-1])
                continue
            process = start(command, stdout=subprocess.PIPE)
            output, _ = process.communicate(timeout=1800)
            print(output[-1500:])
            assert process.returncode == 0
        assert output.split() == ["2021-03-04"] * 2
        running.append(start(f"exec {last}"))
        assert '"encode": "encode.onnx"' in wait_for("http://127.0.0.1:8000/page.json", running[-1])
        assert "showAttention" in (tmp_path / "build/date.html").read_text("utf-8")
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
