// SPDX-License-Identifier: Apache-2.0
// Locret, whose last chunk is decided otherwise than those before it, and whose last entries nobody decides about.
#pragma once

#include <string>
#include <vector>

#include "named.hpp"

namespace kvreplay {

/// Locret of a command line, by `--policy` or by a spec: what a policy by name is not, which is that of all chunks but
/// the last one.
class locret {
 public:
  /// Takes the field `local` out of the options, because the library's spec does not have it.
  explicit locret(options& with) : text_(with.spec) {
    if (with.spec.empty()) {
      fields_ = fields_of<locret_fields>(with);
      std::erase_if(with.set, [](std::string const& each) { return spelled::name_of(each) == "local"; });
    } else {
      read_spec();
    }
  }

  [[nodiscard]] int local() const { return fields_.local; }
  /// The spec without `local`. All else is in its column.
  [[nodiscard]] std::string const& text() const { return text_; }

  /// The spec by which the last chunk is decided: without the stabilizers.
  [[nodiscard]] static std::string last_of(std::string const& spec) {
    kv::locret with;
    kv::detail::set_fields(with, kv::split_spec(spec).front());
    std::size_t const bar = spec.find('|');
    return kv::to_string(with.scorer()) + (bar == std::string::npos ? "" : " " + spec.substr(bar));
  }
  /// The text of all that is done, where `last` decides the last chunk.
  [[nodiscard]] std::string print(any_policy const& last) const {
    std::string const spelt = kv::to_string(last);
    std::size_t const bar = spelt.find(" | ");
    return kv::to_string(fields_) + (bar == std::string::npos ? "" : spelt.substr(bar));
  }

 private:
  void read_spec() {
    std::string const spec = text_;
    kv::spec_part const part = kv::split_spec(spec).front();
    kv::detail::set_fields(fields_, part);
    fields_.check(("parse: column " + std::to_string(part.column)).c_str(), "locret.");
    kv::spec_argument const* const local = kv::detail::argument_of<locret_fields>(part, "local");
    if (local == nullptr) return;
    std::size_t const begin = size(local->name_column - 1);
    std::size_t const end = size(local->value_column - 1) + local->value.size();
    text_.replace(begin, end - begin, end - begin, ' ');
    std::size_t const comma = local != &part.arguments.back() ? text_.find(',', end) : text_.rfind(',', begin);
    if (part.arguments.size() > 1) text_[comma] = ' ';
  }

  locret_fields fields_;
  std::string text_;
};

}  // namespace kvreplay
