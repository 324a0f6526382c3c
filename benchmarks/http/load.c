/* Load on an HTTP/1.1 server: the same request over and over on many connections.
 *
 *   load PORT CONNECTIONS SECONDS RATE REQUEST_FILE
 *
 * With RATE 0 every connection sends its next request when it has its answer. With a RATE requests
 * are due at fixed moments, and a latency counts from when its request was due: a server that
 * stalls is charged for all who would have asked meanwhile. Prints one JSON object. One thread.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX (1 << 20)
#define EVENTS_MAX 256
#define BUCKETS 4000000 /* One for each microsecond up to four seconds. */

struct connection {
    int fd;
    int is_busy;
    double due;
    size_t got;
    char *answer;
};

static char *request;
static size_t request_bytes;
static unsigned *buckets;
static long answered, refused;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int dial(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void ask(struct connection *c, double due) {
    size_t sent = 0;
    c->is_busy = 1;
    c->due = due;
    c->got = 0;
    while (sent < request_bytes) {
        ssize_t n = write(c->fd, request + sent, request_bytes - sent);
        if (n > 0) sent += n;
        else if (errno != EAGAIN) fail("write");
    }
}

/* Return whether an answer is complete, and take note of it. */
static int is_answered(struct connection *c) {
    c->answer[c->got] = 0;
    char *end = strstr(c->answer, "\r\n\r\n");
    if (!end) return 0;
    char *length = strcasestr(c->answer, "\r\ncontent-length:");
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    if (c->got < (size_t)(end + 4 - c->answer) + body) return 0;
    long us = (long)((now() - c->due) * 1e6);
    buckets[us < 0 ? 0 : us >= BUCKETS ? BUCKETS - 1 : us]++;
    answered++;
    if (c->answer[9] != '2') refused++;
    c->is_busy = 0;
    return 1;
}

static long percentile(double share) {
    long wanted = (long)(answered * share), seen = 0;
    for (long us = 0; us < BUCKETS; us++)
        if ((seen += buckets[us]) > wanted) return us;
    return 0;
}

int main(int count, char **words) {
    if (count != 6) return fprintf(stderr, "load PORT CONNECTIONS SECONDS RATE REQUEST_FILE\n"), 2;
    int port = atoi(words[1]), connections = atoi(words[2]);
    double seconds = atof(words[3]), rate = atof(words[4]);
    FILE *file = fopen(words[5], "rb");
    if (!file) fail(words[5]);
    request = malloc(64 << 20);
    request_bytes = fread(request, 1, 64 << 20, file);
    buckets = calloc(BUCKETS, sizeof *buckets);
    struct connection *all = calloc(connections, sizeof *all);
    int poll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        all[i].fd = dial(port);
        all[i].answer = malloc(ANSWER_BYTES_MAX + 1);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    double begin = now(), end = begin + seconds, due = begin;
    if (rate == 0)
        for (int i = 0; i < connections; i++) ask(&all[i], now());
    struct epoll_event events[EVENTS_MAX];
    while (now() < end) {
        if (rate > 0)
            for (int i = 0; i < connections && due <= now(); i++)
                if (!all[i].is_busy) ask(&all[i], due), due += 1 / rate;
        /* Never asleep: to wake this process up would be charged to the slower of two servers. */
        int ready = epoll_wait(poll, events, EVENTS_MAX, 0);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            ssize_t n = read(c->fd, c->answer + c->got, ANSWER_BYTES_MAX - c->got);
            if (n == 0) return fprintf(stderr, "the server hung up\n"), 1;
            if (n < 0) continue;
            c->got += n;
            if (is_answered(c) && rate == 0) ask(c, now());
        }
    }
    printf("{\"requests\": %ld, \"refused\": %ld, \"seconds\": %.3f, \"median_us\": %ld, "
           "\"p99_us\": %ld, \"p999_us\": %ld}\n",
           answered, refused, now() - begin, percentile(0.5), percentile(0.99), percentile(0.999));
    return 0;
}
