"""Asks a SavedModel through TensorFlow's C API, as a C++ server does: no Python of TensorFlow.

    python c_api.py FOLDER < requests

Requests and answers are JSON: a list of `[endpoint, {name: {"dtype", "shape", "values"}}, earlier]`
gives a list of `{name: {"dtype", "shape", "values"}}`, or `{"error": text}`; values are flat lists.
`earlier` is the number of an answer whose tensors are given as well, or null.
"""

import ctypes
import importlib.util
import json
import sys
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

DTYPES = {"float32": 1, "int32": 3, "string": 7, "int64": 9, "bool": 10}
NAMES = {number: name for name, number in DTYPES.items()}
STRING_SIZE = 24  # of a TF_TString


class Output(ctypes.Structure):
    _fields_ = [("operation", c_void_p), ("index", c_int)]


class Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("free", c_void_p)]


def load_library():
    folder = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0])
    for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"):
        library = ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    pointers = "NewStatus NewSessionOptions NewGraph NewBuffer LoadSessionFromSavedModel"
    pointers += " GraphOperationByName AllocateTensor TensorData StringGetDataPointer"
    for name in pointers.split():
        getattr(library, f"TF_{name}").restype = c_void_p
    library.TF_Message.restype = c_char_p
    library.TF_Dim.restype = c_int64
    library.TF_StringGetSize.restype = library.TF_TensorByteSize.restype = c_size_t
    return library


def fields(message):
    """Pairs of number and value of a protocol buffer: bytes, or integers."""
    place = 0

    def varint():
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}[kind] if kind in (1, 5) else varint()
        yield number, message[place : place + size]
        place += size


def mapping(message, number):
    """A map field: keys to bytes."""
    return {
        entry[1].decode(): entry.get(2, b"")
        for found, content in fields(message)
        if found == number
        for entry in [dict(fields(content))]
    }


class Model:
    def __init__(self, folder):
        self.tf = load_library()
        self.status = c_void_p(self.tf.TF_NewStatus())
        self.graph = c_void_p(self.tf.TF_NewGraph())
        meta = POINTER(Buffer)(Buffer.from_address(self.tf.TF_NewBuffer()))
        options = c_void_p(self.tf.TF_NewSessionOptions())
        tags = (c_char_p * 1)(b"serve")
        self.session = c_void_p(
            self.tf.TF_LoadSessionFromSavedModel(
                options, None, folder.encode(), tags, 1, self.graph, meta, self.status
            )
        )
        self.check()
        content = ctypes.string_at(meta.contents.data, meta.contents.length)
        self.signatures = {
            name: (mapping(signature, 1), mapping(signature, 2))
            for name, signature in mapping(content, 5).items()
        }

    def check(self):
        if self.tf.TF_GetCode(self.status):
            raise RuntimeError(self.tf.TF_Message(self.status).decode())

    def output(self, tensor_info):
        """The place in the graph that a TensorInfo names."""
        name, _, index = dict(fields(tensor_info))[1].decode().partition(":")
        operation = self.tf.TF_GraphOperationByName(self.graph, name.encode())
        return Output(operation, int(index or 0))

    def tensor(self, dtype, shape, values):
        dims = (c_int64 * len(shape))(*shape)
        number, count = DTYPES[dtype], len(values)
        width = STRING_SIZE if dtype == "string" else np.dtype(dtype).itemsize
        tensor = c_void_p(
            self.tf.TF_AllocateTensor(number, dims, len(shape), c_size_t(count * width))
        )
        data = self.tf.TF_TensorData(tensor)
        if dtype == "string":
            for place, text in enumerate(values):
                at, text = c_void_p(data + place * STRING_SIZE), text.encode("utf-8")
                self.tf.TF_StringInit(at)
                self.tf.TF_StringCopy(at, text, c_size_t(len(text)))
        else:
            content = np.array(values, dtype).tobytes()
            ctypes.memmove(data, content, len(content))
        return tensor

    def read(self, tensor):
        shape = [self.tf.TF_Dim(tensor, axis) for axis in range(self.tf.TF_NumDims(tensor))]
        dtype, count = NAMES[self.tf.TF_TensorType(tensor)], int(np.prod(shape))
        data = self.tf.TF_TensorData(tensor)
        if dtype == "string":
            values = []
            for place in range(count):
                at = c_void_p(data + place * STRING_SIZE)
                text = self.tf.TF_StringGetDataPointer(at)
                size = self.tf.TF_StringGetSize(at)
                values.append(ctypes.string_at(text, size).decode("utf-8"))
        else:
            content = ctypes.string_at(data, self.tf.TF_TensorByteSize(tensor)) if count else b""
            values = np.frombuffer(content, dtype).tolist()
        return {"dtype": dtype, "shape": shape, "values": values}

    def ask(self, endpoint, given):
        inputs, outputs = self.signatures[endpoint]
        names = sorted(outputs)
        places = (Output * len(given))(*(self.output(inputs[name]) for name in given))
        values = (c_void_p * len(given))(*(self.tensor(**x).value for x in given.values()))
        wanted = (Output * len(names))(*(self.output(outputs[name]) for name in names))
        results = (c_void_p * len(names))()
        asked = places, values, len(given), wanted, results, len(names)
        self.tf.TF_SessionRun(self.session, None, *asked, None, 0, None, self.status)
        self.check()
        return {
            name: self.read(c_void_p(tensor)) for name, tensor in zip(names, results, strict=True)
        }


def main():
    model, answers = Model(sys.argv[1]), []
    for endpoint, given, earlier in json.load(sys.stdin):
        given = given if earlier is None else {**answers[earlier], **given}
        try:
            answers.append(model.ask(endpoint, given))
        except RuntimeError as error:
            answers.append({"error": str(error)})
    assert not {"tensorflow", "keras", "keras_attention"} & set(sys.modules)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
