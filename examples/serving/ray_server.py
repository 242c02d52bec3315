"""Serves an exported model with Ray Serve: batches, and replicas over cores and machines.

    pip install 'ray[serve]==2.60.*' tensorflow
    python ray_server.py --name translate --models build/models/translate --port 8501 --replicas 2
    python client.py --model translate "ein Hund"

Path and rows are those of TensorFlow Serving. `--models` is a folder of numbered versions; every
replica serves the newest, and takes a newer one within two seconds.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from ray import serve

HERE = str(Path(__file__).resolve().parent)


def make_application(name, folder, replicas, batching, origins, most=32, wait=0.005):
    """The deployment: `POST /v1/models/NAME:predict`, `GET /v1/models/NAME`."""
    app = FastAPI()
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["content-type"],
    )

    @serve.deployment(num_replicas=replicas, max_ongoing_requests=64)
    @serve.ingress(app)
    class Servable:
        def __init__(self):
            sys.path.insert(0, HERE)  # replicas are processes of their own
            from versions import NewestVersion

            self.versions = NewestVersion(folder)

        @app.api_route("/{path:path}", methods=["GET", "POST"])
        async def reply(self, request: Request):
            from answering import BadRequest, as_rows

            path = request.url.path
            if path == f"/v1/models/{name}":
                return {"name": name, "ready": True, "version": self.versions.version}
            if path != f"/v1/models/{name}:predict":
                return JSONResponse({"error": f"No such model or path: {path}"}, 404)
            if request.method != "POST":
                return JSONResponse({"error": "Expected POST"}, 405)
            try:
                payload = json.loads(await request.body())
            except ValueError as error:
                return JSONResponse({"error": f"No JSON: {error}"}, 400)
            try:
                return {"predictions": as_rows(await self.outputs(payload))}
            except BadRequest as error:
                return JSONResponse({"error": str(error)}, 400)

        async def outputs(self, payload):
            import asyncio

            from answering import BadRequest, ask, read_request

            signature, inputs = read_request(payload, self.versions.signatures)
            if not batching or list(inputs) != ["text"] or not len(inputs["text"]):
                return await asyncio.to_thread(ask, self.versions.signatures[signature], inputs)
            found = await self.batch((signature, inputs["text"]))
            if isinstance(found, str):
                raise BadRequest(found)
            return found

        @serve.batch(max_batch_size=most, batch_wait_timeout_s=wait)
        async def batch(self, requests):
            """Outputs, or the text of an error, for each `(signature, texts)`."""
            import asyncio

            return await asyncio.to_thread(self.answer, requests)

        def answer(self, requests):
            import numpy as np
            from answering import BadRequest, ask

            results = [None] * len(requests)
            for signature in {signature for signature, _ in requests}:
                places = [n for n, (other, _) in enumerate(requests) if other == signature]
                texts = np.concatenate([requests[n][1] for n in places])
                try:
                    outputs = ask(self.versions.signatures[signature], {"text": texts})
                except BadRequest as error:
                    if len(places) == 1:
                        results[places[0]] = str(error)
                    else:  # one of them is at fault: the others shall not suffer
                        for n in places:
                            results[n] = self.answer([requests[n]])[0]
                    continue
                first = 0
                for n in places:
                    rows = slice(first, first + len(requests[n][1]))
                    first = rows.stop
                    results[n] = {key: x[rows] for key, x in outputs.items()}
            return results

    return Servable.bind()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--name", default="model", help="the model's name in the path (default: %(default)s)")
    add("--models", required=True, help="folder of numbered versions")
    add("--port", type=int, default=8501, help="(default: %(default)s)")
    add("--host", default="127.0.0.1", help="(default: %(default)s)")
    add("--replicas", type=int, default=1, help="processes (default: %(default)s)")
    add("--no-batching", action="store_true", help="each request by itself")
    add("--allow-origin", nargs="+", default=[], metavar="ORIGIN", help="pages that may ask, e.g. "
        "http://127.0.0.1:8000 (default: none of another server)")  # fmt: skip
    options = parser.parse_args()
    folder = str(Path(options.models).resolve())
    if not Path(folder).is_dir():
        parser.error(f"no such folder: {options.models}")
    ray.init(include_dashboard=False, configure_logging=True, log_to_driver=False)
    serve.start(http_options={"host": options.host, "port": options.port})
    application = make_application(
        options.name, folder, options.replicas, not options.no_batching, options.allow_origin
    )
    serve.run(application, name=options.name, route_prefix="/")
    print(f"http://{options.host}:{options.port}/v1/models/{options.name}:predict", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
