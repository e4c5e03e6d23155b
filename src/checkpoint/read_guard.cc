#include "checkpoint/read_guard.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

namespace monolayer::internal {

// Records are linked once and reused, never freed: the signal handler walks the list without locks.
struct MappingRecord {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  // 0: the record is free
  std::atomic<const char*> path{nullptr};
  std::atomic<int> fd{-1};
  std::atomic<std::size_t> bytes{0};
  MappingRecord* next = nullptr;
};

namespace {

std::atomic<MappingRecord*> records{nullptr};
std::mutex records_mutex;
struct sigaction previous_action = {};

struct Guard {
  sigjmp_buf place;
  const MappingRecord* fault = nullptr;
  Guard* outer = nullptr;
};
thread_local Guard* active_guard = nullptr;

const MappingRecord* find_mapping(std::uintptr_t address) {
  for (const MappingRecord* record = records.load(std::memory_order_acquire); record != nullptr;
       record = record->next) {
    const std::uintptr_t end = record->end.load(std::memory_order_acquire);
    if (address < end && address >= record->begin.load(std::memory_order_acquire)) return record;
  }
  return nullptr;
}

// Only async-signal-safe calls from here to on_sigbus.
struct Line {
  char text[512];
  std::size_t used = 0;
  void add(const char* more) {
    while (*more != '\0' && used < sizeof(text) - 1) text[used++] = *more++;
  }
  void add(std::size_t number) {
    char digits[24];
    std::size_t at = sizeof(digits) - 1;
    digits[at] = '\0';
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    add(digits + at);
  }
};

[[noreturn]] void exit_with_message(const MappingRecord& record) {
  Line line;
  line.add("monolayer: error: ");
  const char* path = record.path.load();
  line.add(path == nullptr ? "mapped file" : path);
  struct stat info = {};
  const std::size_t mapped = record.bytes.load();
  if (::fstat(record.fd.load(), &info) == 0 && static_cast<std::size_t>(info.st_size) < mapped) {
    line.add(": truncated while in use: ");
    line.add(mapped);
    line.add(" bytes were mapped, ");
    line.add(static_cast<std::size_t>(info.st_size));
    line.add(" remain");
  } else {
    line.add(": the system could not read a mapped page");
  }
  line.add("\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.text, line.used);
  ::_exit(2);
}

void chain(int signal_number, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal_number, info, context);
    return;
  }
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal_number);
    return;
  }
  // The default action, delivered when this handler returns and the signal is unblocked.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal_number, &action, nullptr);
  ::raise(signal_number);
}

void on_sigbus(int signal_number, siginfo_t* info, void* context) {
  const bool from_kernel = info->si_code > 0;
  const MappingRecord* record =
      from_kernel ? find_mapping(reinterpret_cast<std::uintptr_t>(info->si_addr)) : nullptr;
  if (record == nullptr) {
    chain(signal_number, info, context);
    return;
  }
  if (active_guard == nullptr) exit_with_message(*record);
  active_guard->fault = record;
  siglongjmp(active_guard->place, 1);
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &previous_action);
  });
}

}  // namespace

MappingRecord* register_mapping(const void* begin, std::size_t bytes, const char* path, int fd) {
  install_handler();
  const std::lock_guard<std::mutex> lock(records_mutex);
  MappingRecord* record = records.load();
  while (record != nullptr && record->end.load() != 0) record = record->next;
  if (record == nullptr) {
    record = new MappingRecord;
    record->next = records.load();
    records.store(record, std::memory_order_release);
  }
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  record->path.store(path);
  record->fd.store(fd);
  record->bytes.store(bytes);
  record->begin.store(first, std::memory_order_release);
  record->end.store(first + bytes, std::memory_order_release);
  return record;
}

void unregister_mapping(MappingRecord* record) {
  const std::lock_guard<std::mutex> lock(records_mutex);
  record->end.store(0, std::memory_order_release);
}

Status guard_reads(void (*function)(void*), void* argument) {
  Guard guard;
  guard.outer = active_guard;
  if (sigsetjmp(guard.place, 1) == 0) {
    active_guard = &guard;
    function(argument);
    active_guard = guard.outer;
    return ok_status();
  }
  active_guard = guard.outer;
  const char* path = guard.fault->path.load();
  struct stat info = {};
  if (::fstat(guard.fault->fd.load(), &info) == 0 &&
      static_cast<std::size_t>(info.st_size) < guard.fault->bytes.load()) {
    return {Code::kIoError, path == nullptr ? "mapped file" : path,
            "truncated while in use: " + std::to_string(guard.fault->bytes.load()) +
                " bytes were mapped, " + std::to_string(info.st_size) + " remain"};
  }
  return {Code::kIoError, path == nullptr ? "mapped file" : path,
          "the system could not read a mapped page"};
}

}  // namespace monolayer::internal
