// A machine's files, below a root folder. What they contain is not trusted: reads are bounded, and
// do not block.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/comm/check.h"

namespace weir::check {

class Tree {
 public:
  explicit Tree(const std::string& root) : root_(root.substr(0, root.find_last_not_of('/') + 1)) {}

  // A file's text without the white space at its ends. Absent: there is no such file, it has no
  // content now, or it can't be read, which is noted in unread().
  std::optional<std::string> text(const std::string& path);
  // The names in a folder, sorted; empty: none, or no such folder.
  std::vector<std::string> list(const std::string& path) const;
  bool exists(const std::string& path) const;
  bool is_this_machine() const { return root_.empty(); }

  const std::vector<Unread>& unread() const { return unread_; }

 private:
  const std::string root_;  // without a slash at its end
  std::vector<Unread> unread_;
};

std::string_view trimmed(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace weir::check
