#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scratch memory from Python, by ctypes: consumer.py LIBRARY"""
import ctypes
import sys

escrow = ctypes.CDLL(sys.argv[1])
escrow.escrow_last_error.restype = ctypes.c_char_p
escrow.escrow_allocator_create.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
escrow.escrow_allocator_allocate.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
                                             ctypes.c_void_p]
escrow.escrow_allocator_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
escrow.escrow_allocator_destroy.argtypes = [ctypes.c_void_p]

memory, address = ctypes.c_void_p(), ctypes.c_void_p()
assert escrow.escrow_allocator_create(-1, None, ctypes.byref(memory)) == 0
assert escrow.escrow_allocator_allocate(memory, None, 1000, 3, ctypes.byref(address)) == 1
assert b"`alignment` is 3; pass a power of two" in escrow.escrow_last_error()
assert escrow.escrow_allocator_allocate(memory, None, 1000, 0, ctypes.byref(address)) == 0
assert address.value % 256 == 0
assert escrow.escrow_allocator_free(memory, None, address) == 0
escrow.escrow_allocator_destroy(memory)
