/* A copy past the caches, for large values: an ordinary one first reads every line that it is about
   to overwrite, a third of all the traffic. Built where MOONTIDE_NATIVE=1 asks for it. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <emmintrin.h>

void copy_past_caches(uint8_t *to, const uint8_t *from, size_t count) {
    size_t at = -(uintptr_t)to % 64;
    at = at < count ? at : count;
    memcpy(to, from, at);
    for (; at + 64 <= count; at += 64) {
        __m128i part[4];
        _mm_prefetch((const char *)from + at + 512, _MM_HINT_NTA);
        for (int i = 0; i < 4; i++)
            part[i] = _mm_loadu_si128((const __m128i *)(from + at) + i);
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)(to + at) + i, part[i]);
    }
    memcpy(to + at, from + at, count - at);
    _mm_sfence(); /* before whatever tells other threads of it */
}
#else
void copy_past_caches(uint8_t *to, const uint8_t *from, size_t count) { memcpy(to, from, count); }
#endif
