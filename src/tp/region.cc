// Symmetric memory and the end of a group: the calls whose order protects peers' memory.
#include <algorithm>
#include <string>

#include "tp/group.h"

namespace monolayer::tp {

Result<SymmetricRegion> Group::allocate(std::size_t bytes, const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("allocate"));
  ML_RETURN_IF_ERROR(agree_same(bytes, "bytes of a symmetric region", deadline));
  if (bytes == 0) return Status{Code::kInvalidArgument, "symmetric region", "0 bytes"};

  SymmetricRegion region;
  region.id = next_region_++;
  region.bytes = bytes;
  Handle handle{};
  Status local = allocate_own(bytes, region, handle);
  const bool own = local.ok();
  Agreement allocated = agree(local, deadline);
  if (!allocated.ok()) {
    if (own) free_own(region);
    return allocated.status;
  }
  std::array<Handle, kMaxRanks> handles{};
  const std::size_t ranks = static_cast<std::size_t>(size_);
  Status exchanged =
      all_gather(handle, std::as_writable_bytes(std::span(handles).first(ranks)), deadline);
  if (!exchanged.ok()) {
    free_own(region);  // nobody has mapped it: they would have had to see the exchange
    return exchanged;
  }
  local = map_peers({handles.data(), ranks}, region);
  Agreement mapped = agree(local, deadline);
  if (!mapped.ok()) {
    unmap_peers(region);
    // Memory may go once nobody maps it; where that cannot be known it stays.
    if (barrier(deadline).ok()) free_own(region);
    return mapped.status;
  }
  regions_.push_back(region);
  return region;
}

Status Group::release(SymmetricRegion& region, const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("release"));
  const auto found = std::find_if(regions_.begin(), regions_.end(),
                                  [&](const SymmetricRegion& r) { return r.id == region.id; });
  const bool known = found != regions_.end();
  ML_RETURN_IF_ERROR(agree_same(known ? region.id : 0, "symmetric region to release", deadline));
  if (!known) return {Code::kInvalidArgument, "release", "not a region of this group"};
  const std::uint64_t id = region.id;
  SymmetricRegion held = *found;
  region = {};
  ML_RETURN_IF_ERROR(barrier(deadline));
  unmap_peers(held);
  ML_RETURN_IF_ERROR(barrier(deadline));
  free_own(held);  // which forgets its number too
  std::erase_if(regions_, [&](const SymmetricRegion& r) { return r.id == id; });
  return {};
}

Status Group::close(const Deadline& deadline) {
  if (closed_) return {};
  Status result = status();
  if (result.ok() && size_ > 1) result = barrier(deadline);
  if (result.ok()) {
    for (SymmetricRegion& region : regions_) unmap_peers(region);
    if (size_ > 1) result = barrier(deadline);
  }
  if (result.ok()) {
    for (SymmetricRegion& region : regions_) free_own(region);
    regions_.clear();
  }
  closed_ = true;
  leave(result.ok());
  return result;
}

}  // namespace monolayer::tp
