"""Program that uses the first GPU as standard input instructs; needs no CUDA toolkit.

The first argument names a file; the others are executed first, then each line appended to the file.

| line | action | response |
| --- | --- | --- |
| `alloc BYTES`, `pool BYTES`, `managed BYTES`, `pinned BYTES` | allocate and write | `ok` |
| `free` | free the last allocation | `ok` |
| `write BYTES` | write this much of the last allocation | `ok` |
| `write SECONDS s` | write the last allocation repeatedly for this time | `ok` |
| `export` | | a handle for `import HANDLE` of another process |
| `handle` | handle SIGTERM from now on, and go on | `ok` |
| `exit CODE` | end | |
| `leave` | end, once a child has inherited all open files; the child sleeps for a minute | `ok` |
| `info` | | free and total bytes, as the program sees the GPU |
| `fill` | allocate the fraction of the visible memory that our variable has | `ok` |

A failure has the response `<function> <code>`, and the program goes on. Source: the CUDA driver
API, cuda.h.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

CUDA = ctypes.CDLL("libcuda.so.1")
POINTER = ctypes.c_uint64


class FailedError(Exception):
    pass


class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


def call(name, *arguments):
    if code := getattr(CUDA, name)(*arguments):
        raise FailedError(f"{name} {code}")


def write(pointer, size):
    call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size))
    call("cuCtxSynchronize")


class Program:
    def __init__(self):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", ctypes.byref(device), 0)
        # Use the primary context, since cuCtxCreate changed its arguments in CUDA 13.
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        self.pointers = []

    def answer(self, command, *words):
        return getattr(self, f"do_{command}")(*words) or "ok"

    def _take(self, name, size, *more, writes=True):
        pointer = POINTER()
        call(name, ctypes.byref(pointer), ctypes.c_size_t(int(size)), *more)
        self.pointers.append(pointer)
        if writes:
            write(pointer, int(size))

    def do_alloc(self, size):
        self._take("cuMemAlloc_v2", size)

    def do_pool(self, size):
        self._take("cuMemAllocAsync", size, None)

    def do_managed(self, size):
        self._take("cuMemAllocManaged", size, 1)

    def do_pinned(self, size):
        self._take("cuMemAllocHost_v2", size, writes=False)

    def do_free(self):
        call("cuMemFree_v2", self.pointers.pop())

    def do_write(self, amount, unit=""):
        if not unit:
            return write(self.pointers[-1], int(amount))
        until_s = time.monotonic() + float(amount)
        while time.monotonic() < until_s:
            write(self.pointers[-1], 2**28)
        return None

    def do_export(self):
        handle = Handle()
        call("cuIpcGetMemHandle", ctypes.byref(handle), self.pointers[-1])
        return ctypes.string_at(ctypes.byref(handle), 64).hex()

    def do_import(self, written):
        handle, pointer = Handle.from_buffer_copy(bytes.fromhex(written)), POINTER()
        CUDA.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(POINTER), Handle, ctypes.c_uint]
        call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, 1)

    def do_handle(self):
        signal.signal(signal.SIGTERM, lambda *_: None)

    def do_exit(self, code):
        os._exit(int(code))

    def do_leave(self):
        if os.fork():
            print("ok", flush=True)
            os._exit(0)
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)

    def do_info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return f"{free.value} {total.value}"

    def do_fill(self):
        total = int(self.do_info().split()[1])
        self.do_alloc(int(total * float(os.environ["VRAMWARDEN_GPU_MEMORY_FRACTION"])))


def lines(name="", *first):
    if not name:
        yield from sys.stdin
        return
    yield from first
    with Path(name).open("a+") as file:
        file.seek(0)
        while True:
            yield from iter(file.readline, "")
            time.sleep(0.02)


def main():
    program = Program()
    print("ok", flush=True)
    for line in lines(*sys.argv[1:]):
        try:
            print(program.answer(*line.split()), flush=True)
        except FailedError as error:
            print(error, flush=True)
        except AttributeError:
            print("unknown", flush=True)  # the library has no such function


main()
