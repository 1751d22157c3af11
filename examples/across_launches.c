/* Ranks of different launches call each other from C, and so does a program of a plain shell:

     lattice launch -n 2 ./across_launches serve &
     ./across_launches call lattice://SET/RANK 21       prints 42 */
#include <lattice_overlay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOUBLE = 300, END = 302 };

static int twice(void *calls, lattice_overlay *self, lattice_uid from, const void *in, size_t n, lattice_reply *reply) {
    char text[32];
    int length = snprintf(text, sizeof text, "%.*s", (int)n, (const char *)in);
    if (length >= (int)sizeof text)
        return 1;
    length = snprintf(text, sizeof text, "%ld", 2 * atol(text));
    lattice_reply_set(reply, text, length);
    *(int *)calls += self != NULL && from != 0;
    return 0;
}

static int end(void *is_over, lattice_overlay *self, lattice_uid from, const void *in, size_t n, lattice_reply *reply) {
    (void)self, (void)from, (void)in, (void)n, (void)reply;
    return *(int *)is_over = 1, 0;
}

static int serve(lattice_overlay *self) {
    int calls = 0, is_over = 0;
    char me[64];
    lattice_serve(self, DOUBLE, twice, &calls);
    lattice_serve(self, END, end, &is_over);
    lattice_uid_format(lattice_self(self), me, sizeof me);
    printf("%s serves\n", me);
    fflush(stdout);
    while (!is_over && lattice_progress(self, -1) == LATTICE_OK)
        ;
    return printf("%d calls\n", calls) < 0;
}

int main(int argc, char **argv) {
    lattice_uid to = 0;
    lattice_overlay *self;
    void *answer;
    size_t n;
    if (argc != 2 && (argc != 4 || lattice_uid_parse(argv[2], &to)))
        return fprintf(stderr, "usage: across_launches serve | call UID NUMBER\n"), 2;
    int code = to ? lattice_overlay_join(to >> 32, &self) : lattice_overlay_open(&self);
    if (code)
        return fprintf(stderr, "%s: %d\n", to ? "the call failed" : "cannot take part", code), 1;
    if (!to)
        return code = serve(self), lattice_overlay_close(self), code;
    if ((code = lattice_call(self, to, DOUBLE, argv[3], strlen(argv[3]), 30000, &answer, &n)))
        return fprintf(stderr, "the call failed: %d\n", code), 1;
    printf("%.*s\n", (int)n, (char *)answer);
    lattice_free(answer, n);
    lattice_overlay_close(self);
    return 0;
}
