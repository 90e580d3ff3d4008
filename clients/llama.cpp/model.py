# SPDX-License-Identifier: Apache-2.0
"""A small model with random weights, in the format GGUF: model.py FILE"""
import random
import struct
import sys
from pathlib import Path

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, WORDS = 8, 2048, 5632, 16, 4, 32000
ALIGNMENT = 32
F32, Q4_0 = 0, 2  # types of tensors
UINT32, FLOAT32, STRING = 4, 6, 8  # types of values
MOSTLY_Q4_0 = 2


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def value(name, kind, what):
    packed = text(what) if kind == STRING else struct.pack("<f" if kind == FLOAT32 else "<I", what)
    return text(name) + struct.pack("<I", kind) + packed


def values():
    """What llama.cpp asks of a model of its own architecture."""
    sizes = {"block_count": LAYERS, "context_length": 8192, "embedding_length": WIDTH, "feed_forward_length": INNER,
             "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "vocab_size": WORDS,
             "rope.dimension_count": WIDTH // HEADS}
    yield value("general.architecture", STRING, "llama")
    yield value("general.file_type", UINT32, MOSTLY_Q4_0)
    yield value("tokenizer.ggml.model", STRING, "no_vocab")
    yield value("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5)
    yield value("llama.rope.freq_base", FLOAT32, 10000.0)
    for name, size in sizes.items():
        yield value(f"llama.{name}", UINT32, size)


def ones():
    return struct.pack("<f", 1.0) * WIDTH


def quantized(source, rows, columns):
    """Blocks of a half scale and 32 random values of four bits; a row has about norm 1."""
    scale = struct.pack("<e", 1.0 / (4.6 * columns**0.5))
    blocks = rows * columns // 32
    made = bytearray(source.randbytes(18 * blocks))
    made[0::18], made[1::18] = scale[:1] * blocks, scale[1:] * blocks
    return bytes(made)


def shapes():
    """Name, columns and rows of each matrix; no rows: a vector of ones."""
    kv_width = WIDTH // HEADS * KV_HEADS
    yield "token_embd.weight", WIDTH, WORDS
    yield "output.weight", WIDTH, WORDS
    yield "output_norm.weight", WIDTH, 0
    for layer in range(LAYERS):
        for name, columns, rows in (("attn_norm", WIDTH, 0), ("attn_q", WIDTH, WIDTH), ("attn_k", WIDTH, kv_width),
                                    ("attn_v", WIDTH, kv_width), ("attn_output", WIDTH, WIDTH), ("ffn_norm", WIDTH, 0),
                                    ("ffn_gate", WIDTH, INNER), ("ffn_up", WIDTH, INNER), ("ffn_down", INNER, WIDTH)):
            yield f"blk.{layer}.{name}.weight", columns, rows


def padding(length):
    return bytes(-length % ALIGNMENT)


def write(path):
    source = random.Random(1)
    header, data = b"", []
    offset = 0
    for name, columns, rows in shapes():
        sizes = (columns, rows) if rows else (columns,)
        header += text(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        header += struct.pack("<IQ", Q4_0 if rows else F32, offset)
        made = quantized(source, rows, columns) if rows else ones()
        data.append(made + padding(len(made)))
        offset += len(data[-1])
    known = list(values())
    header = b"GGUF" + struct.pack("<IQQ", 3, len(data), len(known)) + b"".join(known) + header
    Path(path).write_bytes(header + padding(len(header)) + b"".join(data))


if __name__ == "__main__":
    write(sys.argv[1])
