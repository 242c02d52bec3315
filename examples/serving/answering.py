"""Requests in the row format of TensorFlow Serving, answered by a servable.

{"instances": [{"text": "ein Hund"}, {"text": "zwei Katzen"}], "signature_name": "beam"}
{"predictions": [{"translation": ["a dog", ...], "score": [-0.3, ...], ...}, ...]}
"""

import asyncio

import numpy as np
import tensorflow as tf

# What one request may ask for. How many tokens a text may have, the exported model says.
MOST_ROWS, LONGEST_TEXT = 256, 20_000


class BadRequest(ValueError):
    """What the client can put right: status 400."""


def read_request(payload, signatures):
    """The signature's name and its inputs.

    Args:
        payload: what the JSON of the request held.
        signatures: dictionary of the model's signatures.

    Returns:
        `(name, inputs)`; inputs a dictionary of arrays with a row for each instance.

    Raises:
        BadRequest: if the request has another form, names what is not there, holds values of
            another type or of different lengths, or too many or too long ones.
    """
    if not isinstance(payload, dict) or "instances" not in payload:
        raise BadRequest('Expected a JSON object with a list "instances".')
    name = payload.get("signature_name", "serving_default")
    if not isinstance(name, str) or name not in signatures:
        raise BadRequest(f"Unknown signature_name {name!r}. There are: {', '.join(signatures)}.")
    rows = payload["instances"]
    if not isinstance(rows, list):
        raise BadRequest(f'"instances" must be a list. Received: {type(rows).__name__}.')
    if len(rows) > MOST_ROWS:
        raise BadRequest(f'"instances" must be at most {MOST_ROWS}. Received: {len(rows)}.')
    specs = signatures[name].structured_input_signature[1]
    if len(specs) == 1:  # then a row may be the value itself
        (only,) = specs
        rows = [row if isinstance(row, dict) else {only: row} for row in rows]
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(specs):
            raise BadRequest(f"instances[{place}] must have exactly: {', '.join(specs)}.")
    return name, {key: _array(key, [row[key] for row in rows], spec) for key, spec in specs.items()}


def _array(name, values, spec):
    if spec.dtype == tf.string:
        for place, value in enumerate(values):
            if not isinstance(value, str):
                raise BadRequest(f"instances[{place}]: {name} must be a text. Got {value!r:.80}.")
            if len(value) > LONGEST_TEXT:
                raise BadRequest(
                    f"instances[{place}]: {name} must be of at most {LONGEST_TEXT} characters. "
                    f"Received: {len(value)}."
                )
        return np.array([value.encode("utf-8", "replace") for value in values], object)
    try:
        array = np.array(values) if values else np.zeros([0] * spec.shape.rank)
    except ValueError:
        raise BadRequest(f"{name} must be of one length in all instances.") from None
    wanted = spec.dtype.as_numpy_dtype
    numbers = array.dtype.kind in ("iuf" if spec.dtype.is_floating else "iu") or not values
    if array.ndim != spec.shape.rank or not (numbers or array.dtype == wanted):
        shape = list(spec.shape)
        raise BadRequest(
            f"{name} must be {spec.dtype.name} {shape}. Got {array.dtype} {array.shape}."
        )
    return array.astype(wanted)


def ask(signature, inputs):
    """The outputs as arrays.

    Raises:
        BadRequest: if the model refuses an input, e.g. as it is too long.
    """
    try:
        found = signature(**{name: tf.constant(x) for name, x in inputs.items()})
    except tf.errors.InvalidArgumentError as error:
        text = str(error.message)
        found = text.partition("assertion failed: [")[2].partition("]")[0]
        raise BadRequest(found or text[:300]) from None
    return {name: x.numpy() for name, x in found.items()}


def as_rows(outputs):
    """A dictionary for each row, of plain values."""
    count = len(next(iter(outputs.values())))
    return [{name: _plain(x[row]) for name, x in outputs.items()} for row in range(count)]


def _plain(value):
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if value.dtype.kind == "O":  # texts
        return [_plain(x) for x in value]
    return value.tolist()


class Batcher:
    """Joins the texts of requests that arrive at about the same time into one call.

    Args:
        call: function from an array of texts to a dictionary of arrays, run in a thread.
        most: how many texts go into a call.
        wait: seconds that the first request waits for others.
    """

    def __init__(self, call, most=32, wait=0.005):
        self.call, self.most, self.wait = call, most, wait
        self.queue, self.task = asyncio.Queue(), None

    async def ask(self, texts):
        """The outputs for these texts; raises what the call raises for them."""
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        future = asyncio.get_running_loop().create_future()
        await self.queue.put((texts, future))
        return await future

    async def _run(self):
        while True:
            requests = [await self.queue.get()]
            loop = asyncio.get_running_loop()
            end = loop.time() + self.wait
            while sum(len(texts) for texts, _ in requests) < self.most:
                try:
                    left = max(0, end - loop.time())
                    requests.append(await asyncio.wait_for(self.queue.get(), left))
                except TimeoutError:
                    break
            await self._answer(requests)

    async def _answer(self, requests):
        try:
            outputs = await asyncio.to_thread(self.call, np.concatenate([x for x, _ in requests]))
        except Exception as error:
            if len(requests) > 1:  # one of them is at fault: the others shall not suffer
                for request in requests:
                    await self._answer([request])
            elif not requests[0][1].done():
                requests[0][1].set_exception(error)
            return
        first = 0
        for texts, future in requests:
            rows = slice(first, first + len(texts))
            first += len(texts)
            if not future.done():  # the client may have gone
                future.set_result({name: x[rows] for name, x in outputs.items()})
