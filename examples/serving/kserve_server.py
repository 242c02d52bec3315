"""Serves exported models with the SDK of KServe: REST, the paths and rows of TensorFlow Serving.

    pip install 'kserve==0.21.*' tensorflow
    python kserve_server.py --model_name translate --models build/models/translate --http_port 8501
    python client.py --model translate "ein Hund"

`--models` is a folder of numbered versions, e.g. build/models/translate/1; the newest is served,
and a newer one that appears beside it takes its place within two seconds.
"""

import argparse
import asyncio

from answering import BadRequest, Batcher, as_rows, ask, read_request
from kserve import Model, ModelServer, model_server
from kserve.errors import InvalidInput
from starlette.middleware.cors import CORSMiddleware
from versions import NewestVersion


class Servable(Model):
    """A model of kserve that answers from the newest version."""

    def __init__(self, name, folder, batching=True):
        super().__init__(name)
        self.versions = NewestVersion(folder)
        self.batching, self.batchers = batching, {}
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        try:
            return {"predictions": as_rows(await self.outputs(payload))}
        except BadRequest as error:
            raise InvalidInput(str(error)) from None

    async def outputs(self, payload):
        signatures = self.versions.signatures
        name, inputs = read_request(payload, signatures)
        if not self.batching or list(inputs) != ["text"] or not len(inputs["text"]):
            return await asyncio.to_thread(ask, signatures[name], inputs)
        if name not in self.batchers:

            def call(texts):
                return ask(self.versions.signatures[name], {"text": texts})

            self.batchers[name] = Batcher(call)
        return await self.batchers[name].ask(inputs["text"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        parents=[model_server.parser],
        conflict_handler="resolve",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", required=True, help="folder of numbered versions")
    parser.add_argument("--no-batching", action="store_true", help="each request by itself")
    parser.add_argument(
        "--allow-origin",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="pages that may ask, e.g. http://127.0.0.1:8000 (default: those of this server only)",
    )
    options = parser.parse_args()
    if options.allow_origin:
        model_server.app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allow_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["content-type"],
        )
    model = Servable(options.model_name, options.models, not options.no_batching)
    ModelServer(http_port=options.http_port, enable_grpc=False).start([model])


if __name__ == "__main__":
    main()
