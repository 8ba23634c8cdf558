/* The extension module _copying: copies, and their xxh3-64 on the way: one pass over the memory.

   Stores of large buffers go past the caches (non-temporal): an ordinary one first reads the line
   that it is about to overwrite, which is a third of all the traffic. The sum is the long form of
   XXH3 with the default secret and seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md); it
   costs nothing while the memory is what the core waits for.

   native.py loads it and says what its functions promise. Without it, or where is_supported() is
   false, numpy and xxhash do the same. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEAST_SUMMED 241 /* smaller inputs have other formulas */
#define UNLOCKED (64 << 10)
#define PAST_CACHES (256 << 10) /* smaller values are often used again while in them */

#ifdef __x86_64__

#include <immintrin.h>

#define INLINE __attribute__((target("avx2"), always_inline)) static inline
#define STRIPE 64
#define STRIPES_OF_BLOCK 16
#define BLOCK (STRIPE * STRIPES_OF_BLOCK)
#define AHEAD 512 /* bytes; what the core's own prefetching leaves at the ends of pages */

#define PRIME32_1 0x9E3779B1U
#define PRIME32_2 0x85EBCA77U
#define PRIME32_3 0xC2B2AE3DU
#define PRIME64_1 0x9E3779B185EBCA87ULL
#define PRIME64_2 0xC2B2AE3D27D4EB4FULL
#define PRIME64_3 0x165667B19E3779F9ULL
#define PRIME64_4 0x85EBCA77C2B2AE63ULL
#define PRIME64_5 0x27D4EB2F165667C5ULL
#define PRIME_MX1 0x165667919E3779F9ULL

static const uint8_t SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

/* The eight accumulators. */
typedef struct {
    __m256i low, high;
} Sum;

enum Store { LINES, HALF_LINES, CACHED };

INLINE __m256i mixed(__m256i sum, __m256i data, const uint8_t *secret) {
    __m256i keyed = _mm256_xor_si256(data, _mm256_loadu_si256((const __m256i *)secret));
    __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
    __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
    return _mm256_add_epi64(product, _mm256_add_epi64(sum, swapped));
}

INLINE __m256i scrambled(__m256i sum, const uint8_t *secret) {
    __m256i prime = _mm256_set1_epi32((int)PRIME32_1);
    sum = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
    sum = _mm256_xor_si256(sum, _mm256_loadu_si256((const __m256i *)secret));
    __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(sum, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(sum, prime), _mm256_slli_epi64(upper, 32));
}

INLINE void store(uint8_t *to, __m256i data, enum Store how) {
    if (how == LINES) {
        _mm256_stream_si256((__m256i *)to, data);
    } else if (how == HALF_LINES) {
        _mm_stream_si128((__m128i *)to, _mm256_castsi256_si128(data));
        _mm_stream_si128((__m128i *)(to + 16), _mm256_extracti128_si256(data, 1));
    } else {
        _mm256_storeu_si256((__m256i *)to, data);
    }
}

INLINE Sum add_stripe(Sum sum, const uint8_t *data, const uint8_t *secret) {
    sum.low = mixed(sum.low, _mm256_loadu_si256((const __m256i *)data), secret);
    sum.high = mixed(sum.high, _mm256_loadu_si256((const __m256i *)(data + 32)), secret + 32);
    return sum;
}

INLINE Sum copy_and_add_block(Sum sum, uint8_t *to, const uint8_t *from, enum Store how) {
    for (size_t stripe = 0; stripe < STRIPES_OF_BLOCK; stripe++) {
        const uint8_t *data = from + stripe * STRIPE;
        const uint8_t *secret = SECRET + 8 * stripe;
        if (how != CACHED)
            _mm_prefetch((const char *)data + AHEAD, _MM_HINT_NTA);
        __m256i low = _mm256_loadu_si256((const __m256i *)data);
        __m256i high = _mm256_loadu_si256((const __m256i *)(data + 32));
        store(to + stripe * STRIPE, low, how);
        store(to + stripe * STRIPE + 32, high, how);
        sum.low = mixed(sum.low, low, secret);
        sum.high = mixed(sum.high, high, secret + 32);
    }
    sum.low = scrambled(sum.low, SECRET + sizeof SECRET - 64);
    sum.high = scrambled(sum.high, SECRET + sizeof SECRET - 32);
    return sum;
}

INLINE Sum copy_and_add_blocks(Sum sum, uint8_t *to, const uint8_t *from, size_t blocks,
                               enum Store how) {
    for (size_t block = 0; block < blocks; block++)
        sum = copy_and_add_block(sum, to + block * BLOCK, from + block * BLOCK, how);
    return sum;
}

INLINE void copy_stripes(uint8_t *to, const uint8_t *from, size_t stripes, enum Store how) {
    for (size_t at = 0; at < stripes * STRIPE; at += STRIPE) {
        if (how != CACHED)
            _mm_prefetch((const char *)from + at + AHEAD, _MM_HINT_NTA);
        __m256i low = _mm256_loadu_si256((const __m256i *)(from + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(from + at + 32));
        store(to + at, low, how);
        store(to + at + 32, high, how);
    }
}

static uint64_t word(const uint8_t *from) {
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static uint64_t folded(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

INLINE uint64_t merged(Sum sum, size_t count) {
    uint64_t words[8];
    _mm256_storeu_si256((__m256i *)words, sum.low);
    _mm256_storeu_si256((__m256i *)(words + 4), sum.high);
    uint64_t hash = count * PRIME64_1;
    for (size_t pair = 0; pair < 4; pair++) {
        const uint8_t *secret = SECRET + 11 + 16 * pair;
        hash += folded(words[2 * pair] ^ word(secret), words[2 * pair + 1] ^ word(secret + 8));
    }
    hash = (hash ^ hash >> 37) * PRIME_MX1;
    return hash ^ hash >> 32;
}

static enum Store store_for(const uint8_t *to, size_t count) {
    if (count < PAST_CACHES || (uintptr_t)to % 16 != 0)
        return CACHED;
    return (uintptr_t)to % 32 == 0 ? LINES : HALF_LINES;
}

static int is_supported(void) { return __builtin_cpu_supports("avx2") != 0; }

/* Buffers do not overlap. */
__attribute__((target("avx2"))) static void copy_bytes(uint8_t *to, const uint8_t *from,
                                                       size_t count) {
    size_t stripes = count / STRIPE;
    switch (store_for(to, count)) {
    case LINES: copy_stripes(to, from, stripes, LINES); break;
    case HALF_LINES: copy_stripes(to, from, stripes, HALF_LINES); break;
    case CACHED: copy_stripes(to, from, stripes, CACHED); break;
    }
    memcpy(to + stripes * STRIPE, from + stripes * STRIPE, count % STRIPE);
    _mm_sfence();
}

/* Returns the xxh3-64 of what `to` then holds, also when `from` changes meanwhile: every byte of it
   is read once. `count` is at least LEAST_SUMMED. */
__attribute__((target("avx2"))) static uint64_t copy_and_sum(uint8_t *to, const uint8_t *from,
                                                             size_t count) {
    static const uint64_t START[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                      PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    Sum sum = {_mm256_loadu_si256((const __m256i *)START),
               _mm256_loadu_si256((const __m256i *)(START + 4))};
    size_t blocks = (count - 1) / BLOCK;
    switch (store_for(to, count)) {
    case LINES: sum = copy_and_add_blocks(sum, to, from, blocks, LINES); break;
    case HALF_LINES: sum = copy_and_add_blocks(sum, to, from, blocks, HALF_LINES); break;
    case CACHED: sum = copy_and_add_blocks(sum, to, from, blocks, CACHED); break;
    }
    size_t done = blocks * BLOCK;
    memcpy(to + done, from + done, count - done);
    size_t stripes = (count - 1 - done) / STRIPE;
    for (size_t stripe = 0; stripe < stripes; stripe++)
        sum = add_stripe(sum, to + done + stripe * STRIPE, SECRET + 8 * stripe);
    sum = add_stripe(sum, to + count - STRIPE, SECRET + sizeof SECRET - STRIPE - 7);
    _mm_sfence();
    return merged(sum, count);
}

#else

static int is_supported(void) { return 0; }
static void copy_bytes(uint8_t *to, const uint8_t *from, size_t count) { memcpy(to, from, count); }
static uint64_t copy_and_sum(uint8_t *to, const uint8_t *from, size_t count) {
    memcpy(to, from, count);
    return 0;
}

#endif

/* The buffers of one copy. */
typedef struct {
    Py_buffer to, from;
} Pair;

static void give_back(Pair *pair) {
    PyBuffer_Release(&pair->to);
    PyBuffer_Release(&pair->from);
}

static int take_pair(Pair *pair, PyObject *args) {
    if (!PyArg_ParseTuple(args, "w*y*", &pair->to, &pair->from))
        return 0;
    if (pair->to.len == pair->from.len)
        return 1;
    PyErr_Format(PyExc_ValueError, "copy of %zd bytes into %zd", pair->from.len, pair->to.len);
    give_back(pair);
    return 0;
}

static PyObject *py_copy(PyObject *module, PyObject *args) {
    (void)module;
    Pair pair;
    if (!take_pair(&pair, args))
        return NULL;
    size_t count = (size_t)pair.to.len;
    PyThreadState *state = count >= UNLOCKED ? PyEval_SaveThread() : NULL;
    copy_bytes(pair.to.buf, pair.from.buf, count);
    if (state)
        PyEval_RestoreThread(state);
    give_back(&pair);
    Py_RETURN_NONE;
}

static PyObject *py_copy_and_checksum(PyObject *module, PyObject *args) {
    (void)module;
    Pair pair;
    if (!take_pair(&pair, args))
        return NULL;
    size_t count = (size_t)pair.to.len;
    if (count < LEAST_SUMMED) {
        give_back(&pair);
        return PyErr_Format(PyExc_ValueError, "%zu bytes; at least %d", count, LEAST_SUMMED);
    }
    PyThreadState *state = count >= UNLOCKED ? PyEval_SaveThread() : NULL;
    uint64_t checksum = copy_and_sum(pair.to.buf, pair.from.buf, count);
    if (state)
        PyEval_RestoreThread(state);
    give_back(&pair);
    return PyLong_FromUnsignedLongLong(checksum);
}

static PyObject *py_is_supported(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return PyBool_FromLong(is_supported());
}

static PyMethodDef FUNCTIONS[] = {
    {"copy", py_copy, METH_VARARGS, NULL},
    {"copy_and_checksum", py_copy_and_checksum, METH_VARARGS, NULL},
    {"is_supported", py_is_supported, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_copying",
    .m_methods = FUNCTIONS,
};

PyMODINIT_FUNC PyInit__copying(void);
PyMODINIT_FUNC PyInit__copying(void) { return PyModule_Create(&MODULE); }
