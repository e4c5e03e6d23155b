#include "backend/cuda/peers.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace monolayer::cuda {
namespace {

// What a rank tells its peers of its region.
struct Introduction {
  std::int64_t process = 0;
  std::int32_t device = 0;
  char bus[32] = {};
  unsigned char* region = nullptr;  // for peers of the same process
  cudaIpcMemHandle_t handle = {};   // for all others
};

std::string pair_of(int a, int b) {
  return "ranks " + std::to_string(a) + " and " + std::to_string(b);
}

}  // namespace

Status Peers::allocate(int ranks, int hidden) {
  const auto bytes = static_cast<std::size_t>(mail_bytes(ranks, hidden));
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::create(bytes, "CUDA mailbox"));
  ML_CUDA(cudaMemset(buffer.as<void>(), 0, bytes));
  own_.push_back(std::move(buffer));
  return {};
}

Result<std::unique_ptr<Peers>> Peers::on_one_device(int ranks, int hidden) {
  std::unique_ptr<Peers> peers(new Peers);
  for (int r = 0; r < ranks; ++r) ML_RETURN_IF_ERROR(peers->allocate(ranks, hidden));
  ML_CUDA(cudaDeviceSynchronize());
  for (int r = 0; r < ranks; ++r) {
    Mailbox m{};
    for (int to = 0; to < ranks; ++to)
      m.region[to] = peers->own_[static_cast<std::size_t>(to)].as<unsigned char>();
    m.ranks = ranks;
    m.rank = r;
    peers->mailboxes_.push_back(m);
  }
  return peers;
}

Result<std::unique_ptr<Peers>> Peers::standing_in(int ranks, int hidden) {
  std::unique_ptr<Peers> peers(new Peers);
  ML_RETURN_IF_ERROR(peers->allocate(ranks, hidden));
  ML_CUDA(cudaDeviceSynchronize());
  Mailbox m{};
  for (int to = 0; to < ranks; ++to) m.region[to] = peers->own_[0].as<unsigned char>();
  m.ranks = ranks;
  m.stand_in = 1;
  peers->mailboxes_.push_back(m);
  return peers;
}

Result<std::unique_ptr<Peers>> Peers::connect(tp::Group& group, int hidden) {
  std::unique_ptr<Peers> peers(new Peers);
  peers->group_ = &group;
  Introduction mine;
  const auto introduce = [&]() -> Status {
    ML_CUDA(cudaGetDevice(&peers->device_));
    ML_RETURN_IF_ERROR(peers->allocate(group.size(), hidden));
    ML_CUDA(cudaDeviceSynchronize());
    mine.process = getpid();
    mine.device = peers->device_;
    mine.region = peers->own_[0].as<unsigned char>();
    ML_CUDA(cudaDeviceGetPCIBusId(mine.bus, sizeof mine.bus, peers->device_));
    ML_CUDA(cudaIpcGetMemHandle(&mine.handle, mine.region));
    return {};
  };
  const Status introduced = introduce();
  ML_RETURN_IF_ERROR(group.agree(introduced).status);

  std::vector<Introduction> all(static_cast<std::size_t>(group.size()));
  ML_RETURN_IF_ERROR(
      group.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))));
  Mailbox m{};
  m.ranks = group.size();
  m.rank = group.rank();
  const auto map = [&]() -> Status {
    for (int r = 0; r < m.ranks; ++r) {
      const Introduction& other = all[static_cast<std::size_t>(r)];
      if (r == m.rank) {
        m.region[r] = mine.region;
        continue;
      }
      if (std::strncmp(other.bus, mine.bus, sizeof mine.bus) == 0)
        return {Code::kUnsupported, "CUDA peers",
                pair_of(m.rank, r) + " are both on device " + mine.bus + ", each needs its own"};
      const auto unreachable = [&]() -> Status {
        return {
            Code::kUnsupported, "CUDA peers",
            pair_of(m.rank, r) + ": no peer access from device " + mine.bus + " to " + other.bus};
      };
      // A device of another process need not be visible here; then opening its handle tells.
      int visible = 0;
      int reachable = 1;
      if (cudaDeviceGetByPCIBusId(&visible, other.bus) == cudaSuccess) {
        ML_CUDA(cudaDeviceCanAccessPeer(&reachable, mine.device, visible));
      } else {
        cudaGetLastError();
      }
      if (reachable == 0) return unreachable();
      if (other.process != mine.process) {
        void* opened = nullptr;
        const cudaError_t error =
            cudaIpcOpenMemHandle(&opened, other.handle, cudaIpcMemLazyEnablePeerAccess);
        if (error == cudaErrorPeerAccessUnsupported || error == cudaErrorNotSupported) {
          cudaGetLastError();
          return unreachable();
        }
        ML_RETURN_IF_ERROR(cuda_status(error, "CUDA peers, " + pair_of(m.rank, r)));
        peers->opened_.push_back(opened);
        m.region[r] = static_cast<unsigned char*>(opened);
        continue;
      }
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(other.device, 0);
      if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
        cudaGetLastError();
      } else {
        ML_CUDA(enabled);
      }
      m.region[r] = other.region;
    }
    return {};
  };
  const Status mapped = map();
  peers->mailboxes_.push_back(m);
  const Status agreed = group.agree(mapped).status;
  if (agreed.ok()) return peers;
  ML_RETURN_IF_ERROR(peers->close());  // collective as well: every rank comes here
  return agreed;
}

Peers::~Peers() {
  // Peers that have not let go may still write here.
  if (group_ == nullptr || closed_) return;
  for (DeviceBuffer& region : own_) region.leak();
}

Record* Peers::record(int i) const {
  const Mailbox& m = mailbox(i);
  return reinterpret_cast<Record*>(m.region[m.rank] + kMailRecord);
}

Result<Record> Peers::read_record(int i) const {
  Record r{};
  // A peer writes it while this device is idle: a store or two from complete, unless it has died.
  for (int tries = 0; tries < 100; ++tries) {
    ML_CUDA(cudaMemcpy(&r, record(i), sizeof r, cudaMemcpyDeviceToHost));
    if (r.set != 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return r;
}

Status Peers::set_steps(std::uint64_t steps) {
  for (const Mailbox& m : mailboxes_) {
    ML_CUDA(cudaMemcpy(m.region[m.rank] + kMailStep, &steps, sizeof steps, cudaMemcpyHostToDevice));
  }
  ML_CUDA(cudaDeviceSynchronize());
  return {};
}

Status Peers::clear_records() {
  for (int i = 0; i < ranks(); ++i) ML_CUDA(cudaMemset(record(i), 0, sizeof(Record)));
  ML_CUDA(cudaDeviceSynchronize());
  return {};
}

Status Peers::close() {
  if (closed_) return {};
  if (group_ != nullptr) {
    ML_RETURN_IF_ERROR(group_->barrier());
    Status let_go;
    for (void* region : opened_) {
      const Status status = cuda_status(cudaIpcCloseMemHandle(region), "CUDA peers");
      if (let_go.ok()) let_go = status;
    }
    opened_.clear();
    // Nobody frees what this rank may still have mapped: the barrier fails on all ranks.
    if (!let_go.ok()) group_->fail(let_go);
    const Status met = group_->barrier();
    ML_RETURN_IF_ERROR(let_go);
    ML_RETURN_IF_ERROR(met);
  }
  own_.clear();
  closed_ = true;
  return {};
}

std::string describe_record(const Record& r) {
  static constexpr const char* kRegions[] = {"arrivals", "words", "fence", "second fence",
                                             "hand-off"};
  std::string text = "rank " + std::to_string(r.rank) + ", block " + std::to_string(r.block) +
                     " gave up waiting in layer " + std::to_string(r.layer) + ", stage " +
                     std::to_string(r.stage) + " (" +
                     kRegions[std::min<std::uint32_t>(r.region, kHandOff)];
  if (r.region != kArrivals) text += ", index " + std::to_string(r.index);
  return text + "): expected " + std::to_string(r.expected) + ", saw " + std::to_string(r.seen);
}

}  // namespace monolayer::cuda
