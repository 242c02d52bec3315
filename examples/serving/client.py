"""Asks a model server by REST: TensorFlow Serving, kserve_server.py and ray_server.py alike.

    python client.py --model translate "ein Hund" "zwei Katzen"
    python client.py --model translate --signature beam < lines.txt

Needs `requests`. What a server refuses is an error; what it can not answer now is tried again.
"""

import argparse
import json
import sys

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry


class ServerError(RuntimeError):
    """What the server answered instead of a prediction; `status` is the HTTP status."""

    def __init__(self, status, text):
        super().__init__(f"status {status}: {text}")
        self.status = status


class Client:
    """Asks one model.

    Args:
        url: address of the server, e.g. "http://127.0.0.1:8501".
        model: name of the model.
        batch_size: how many texts go into a request.
        retries: how often to try again, waiting longer each time, while the server can not be
            reached or says 502, 503 or 504.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url, model, batch_size=32, retries=5, timeout=60.0):
        self.url = f"{url.rstrip('/')}/v1/models/{model}:predict"
        self.batch_size, self.timeout = batch_size, timeout
        self.session = requests.Session()
        again = Retry(
            retries,
            backoff_factor=0.2,
            status_forcelist=(502, 503, 504),
            allowed_methods=None,  # asking twice does no harm
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(max_retries=again))

    def predict(self, texts, signature="serving_default"):
        """A dictionary of outputs for each text, in their order.

        Raises:
            ServerError: if the server refuses a request.
            requests.RequestException: if it can not be reached.
        """
        predictions = []
        for first in range(0, len(texts), self.batch_size):
            rows = [{"text": text} for text in texts[first : first + self.batch_size]]
            predictions += self.post({"instances": rows, "signature_name": signature})
        return predictions

    def post(self, payload):
        """The predictions for the JSON of a request."""
        answer = self.session.post(self.url, json=payload, timeout=self.timeout)
        try:
            content = answer.json()
        except ValueError:
            content = {"error": answer.text[:300]}
        if answer.status_code != 200 or "predictions" not in content:
            raise ServerError(answer.status_code, content.get("error", content))
        return content["predictions"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="by default the lines of standard input")
    add("--url", default="http://127.0.0.1:8501", help="(default: %(default)s)")
    add("--model", default="model", help="(default: %(default)s)")
    add("--signature", default="serving_default", help="e.g. beam (default: %(default)s)")
    add("--json", action="store_true", help="all outputs")
    options = parser.parse_args()
    texts = options.texts or sys.stdin.read().splitlines()
    try:
        found = Client(options.url, options.model).predict(texts, options.signature)
    except (ServerError, requests.RequestException) as error:
        sys.exit(f"client.py: error: {error}")
    for row in found:
        best = row.get("translation", row.get("generated"))
        print(json.dumps(row if options.json else best, ensure_ascii=False)
              if options.json or not isinstance(best, str) else best)  # fmt: skip


if __name__ == "__main__":
    main()
