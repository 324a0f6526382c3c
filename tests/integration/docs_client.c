/* Client of docs_fork_server.py: runs a command in a process that the server forks.

   The name of this program is the command. The server's socket is beside it. The forked process
   gets the arguments, environment, working directory, umask, ignored signals and standard streams
   of this one. Signals are forwarded to it, and it is killed if this process dies. Resource limits,
   priorities and the process group are not passed on. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 125, STREAMS = 3, SIGNALS_MAX = 64 };

/* Followed by `size` bytes: the arguments, then the environment, a NUL after each string. */
struct request {
    uint64_t ignored; /* Bit n: signal n is ignored. */
    uint32_t size;
    uint32_t arguments;
    uint32_t umask;
    uint32_t unused;
};

static const int FORWARDED[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
enum { FORWARDED_COUNT = sizeof FORWARDED / sizeof *FORWARDED };

extern char **environ;
static int server;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "docs_client: %s: %s\n", what, strerror(errno));
    _exit(FAILED);
}

static void forward(int number)
{
    int before = errno;
    unsigned char byte = (unsigned char)number;
    /* If the server is gone, the read in main() ends too. */
    (void)!send(server, &byte, 1, MSG_NOSIGNAL);
    errno = before;
}

static int connect_to_server(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        fail("readlink");
    path[length] = 0;
    *strrchr(path, '/') = 0;
    length = snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", path);
    if ((size_t)length >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        fail(path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail(address.sun_path);
    return fd;
}

static char *append(char *to, size_t *size, const char *string)
{
    size_t length = strlen(string) + 1;
    to = realloc(to, *size + length);
    if (to == NULL)
        fail("realloc");
    memcpy(to + *size, string, length);
    *size += length;
    return to;
}

static void send_request(int argc, char **argv)
{
    struct request request = {.arguments = (uint32_t)argc, .umask = umask(0)};
    size_t size = 0, sent = 0;
    char *strings = append(NULL, &size, program_invocation_short_name);
    for (int i = 1; i < argc; i++)
        strings = append(strings, &size, argv[i]);
    for (char **each = environ; *each; each++)
        strings = append(strings, &size, *each);
    request.size = (uint32_t)size;
    for (int number = 1; number < SIGNALS_MAX; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
            request.ignored |= UINT64_C(1) << number;
    }
    int fds[STREAMS + 1] = {0, 1, 2, open(".", O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (fds[STREAMS] < 0)
        fail("open .");

    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } control = {0};
    struct iovec body = {.iov_base = &request, .iov_len = sizeof request};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control,
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(rights), fds, sizeof fds);
    if (sendmsg(server, &message, MSG_NOSIGNAL) != sizeof request)
        fail("sendmsg");
    while (sent < size) {
        ssize_t more = send(server, strings + sent, size - sent, MSG_NOSIGNAL);
        if (more < 0)
            fail("send");
        sent += (size_t)more;
    }
}

int main(int argc, char **argv)
{
    for (int fd = 0; fd < STREAMS; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            fail("a standard stream is closed");
    /* A signal that arrives now is forwarded once the request is sent. */
    sigset_t forwarded, before;
    sigemptyset(&forwarded);
    for (int i = 0; i < FORWARDED_COUNT; i++)
        sigaddset(&forwarded, FORWARDED[i]);
    sigprocmask(SIG_BLOCK, &forwarded, &before);
    server = connect_to_server();
    send_request(argc, argv);
    for (int i = 0; i < FORWARDED_COUNT; i++) {
        struct sigaction action;
        sigaction(FORWARDED[i], NULL, &action);
        if (action.sa_handler == SIG_IGN)
            continue;
        action = (struct sigaction){.sa_handler = forward, .sa_flags = SA_RESTART};
        sigaction(FORWARDED[i], &action, NULL);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);

    int32_t status;
    if (recv(server, &status, sizeof status, MSG_WAITALL) != sizeof status)
        fail("the server has ended");
    if (WIFSIGNALED(status)) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}
