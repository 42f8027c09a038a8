/* Adds as many seconds as a file says to the wall clock of the program that preloads this library. The file is read at
   each look at the clock, so that the clock can jump while the program runs. Monotonic clocks go on as they are.

   gettimeofday() tells the machine's time: the allocator computes from it until when a thread sleeps, which the kernel
   compares with its own clock. The programs tell the time by clock_gettime(). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The seconds to add. NULL until the file is mapped: the allocator reads a clock before that. */
static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += *offset;
    return failed;
}
