"""A program that allocates GPU memory step by step, as its standard input says; needs no toolkit.

A line `<bytes>` allocates that much more and is answered with `<all bytes allocated so far>`.
Source: the CUDA driver API, cuda.h.
"""

import ctypes
import sys

ALLOCATED = 0


def check(code, name):
    if code:
        sys.exit(f"{name} returned {code}")


def main():
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    # The primary context: cuCtxCreate changed its arguments in CUDA 13.
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    allocated = 0
    print(allocated, flush=True)
    for line in sys.stdin:
        address = ctypes.c_uint64()
        size = int(line)
        check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), "cuMemAlloc_v2")
        check(
            cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(1), ctypes.c_size_t(size)), "cuMemsetD8_v2"
        )
        check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
        allocated += size
        print(allocated, flush=True)


main()
