// SPDX-License-Identifier: Apache-2.0
// Random steps of requests' lives on every kind of cache, while memory runs out now and then. After each step the
// cache, the state, the slots that are free and the pages are those of a plain model. The night sets the number of
// steps to 100,000, under the sanitizers.

#include "laws/more_worlds.hpp"

namespace model_soak_test {

using namespace kvpolicy_test;

/// What a lane holds of a token, wherever its request is now.
struct held_token {
  int number = 0;  ///< from which its rows follow
  int position = 0;
  float gate = 0;
  float log_beta = 0;
};
using held_lane = std::vector<held_token>;

/// A request: its lanes in each piece of the world, its drafts, and the position of its next token.
struct request {
  std::vector<std::vector<held_lane>> lanes;  ///< [piece][layer x heads + head]
  int drafts = 0, next = 0;
  bool begun = false;  ///< with tokens, since the slot was reset or truncated to position 0

  [[nodiscard]] bool empty() const {
    return std::all_of(lanes.begin(), lanes.end(), [](auto const& all) {
      return std::all_of(all.begin(), all.end(), [](held_lane const& each) { return each.empty(); });
    });
  }
};

/// Whether lanes have changed since a decision: no, a call was made that changed nothing, or yes.
enum class changed { no, maybe, yes };

class soak {
 public:
  soak(kind of, std::uint64_t seed) : of_(of), random_(seed), now_(make_world(of)) {
    if (of == kind::dual) both_ = dynamic_cast<dual_world*>(now_.get());
    if (of != kind::dual && of != kind::groups) one_ = dynamic_cast<cache_world*>(now_.get());
    for (int slot = 0; slot < world::slots; ++slot) now_->reset_one(slot);
    request nothing;
    for (world::piece const& each : now_->pieces()) {
      nothing.lanes.emplace_back(as_size(each.all->shape.layers * each.all->shape.kv_heads));
    }
    model_.assign(world::slots, nothing);
    since_.fill(changed::yes);
  }

  void step() {
    std::ostringstream what;
    did_ = &what;
    int const slot = random_.below(world::slots);
    switch (random_.below(16)) {
      case 0:
        reset(slot);
        break;
      case 1:
        copy(slot, random_.below(world::slots), false);
        break;
      case 2:
        copy(slot, random_.below(world::slots), true);
        break;
      case 3:
        swap(slot, random_.below(world::slots));
        break;
      case 4:
        reorder();
        break;
      case 5:
        truncate(slot);
        break;
      case 6:
      case 7:
        speculate(slot);
        break;
      case 8:
      case 9:
        evict();
        break;
      case 10:
        decide_for_later();
        break;
      case 11:
        apply_what_was_decided();
        break;
      case 12:
        ingest(slot);
        break;
      default:
        append(slot);
    }
    INFO(std::string(text_of(of_)), ", step ", steps, ": ", what.str(), log_);
    check();
    log_ = " <- " + what.str() + log_.substr(0, 400);
    ++steps;
  }

  long steps = 0, failures = 0, refusals = 0, stale = 0;

 private:
  enum class end { done, refused, no_memory };

  /// Makes a call, in which an allocation may fail. If it throws, nothing was changed.
  template <class Call>
  end call(Call const& work) {
    byte_image const before = now_->image();
    bool failed = false;
    long const at = random_.chance(25) ? random_.below(24) : -1;
    std::string told;
    try {
      if (at >= 0) {
        failed = fails_at_allocation(at, work);
      } else {
        work();
      }
    } catch (kv::invalid_argument const& refused) {
      until_failure = -1;
      told = refused.what();
      if (told.empty()) told = "?";
    }
    if (!failed && told.empty()) return end::done;
    *did_ << (failed ? " (no memory)" : " (refused: ") << told << (failed ? "" : ")");
    ++(failed ? failures : refusals);
    INFO(std::string(text_of(of_)), ", step ", steps, ": ", did_->str(), log_);
    REQUIRE(now_->image() == before);
    return failed ? end::no_memory : end::refused;
  }

  /// A call was refused exactly where it should be.
  void agree(bool right) {
    INFO(std::string(text_of(of_)), ", step ", steps, ": ", did_->str(), log_);
    REQUIRE(right);
  }

  request& at(int slot) { return model_[as_size(slot)]; }
  void note(int slot, changed how = changed::yes) {
    changed& mine = since_[as_size(slot)];
    mine = std::max(mine, how);
  }
  /// True if no lane that is decided about holds anything: of a dual cache, its pages.
  [[nodiscard]] bool none_decided(request const& of) const {
    auto const& all = of.lanes[of_ == kind::dual ? 1 : 0];
    return std::all_of(all.begin(), all.end(), [](held_lane const& each) { return each.empty(); });
  }
  /// What new or committed tokens change: of a dual cache, the window alone.
  [[nodiscard]] changed by_tokens() const { return of_ == kind::dual ? changed::maybe : changed::yes; }
  [[nodiscard]] request nothing() const {
    request made = model_[0];
    for (auto& piece : made.lanes) piece.assign(piece.size(), {});
    made.drafts = made.next = 0;
    made.begun = false;
    return made;
  }
  /// A part of the batch in which the slot is.
  view view_of(int slot) {
    view const any = all_views[random_.below(4)];
    return any == view::layers || sequence_in(any, slot) < 0 ? view::whole : any;
  }
  void tell_lengths() {
    for (int slot = 0; slot < world::slots; ++slot) now_->length[as_size(slot)] = at(slot).next;
  }

  void reset(int slot) {
    std::vector<int> some{slot};
    if (of_ != kind::groups && random_.chance(40)) some.push_back((slot + 1) % world::slots);
    *did_ << "reset of " << some.size() << " from " << slot;
    if (call([&] { now_->reset(some); }) != end::done) return;
    for (int const each : some) {
      note(each, none_decided(at(each)) ? changed::maybe : changed::yes);
      at(each) = nothing();
    }
  }

  void copy(int from, int to, bool move) {
    *did_ << (move ? "move " : "fork ") << from << " to " << to;
    bool const fits = from != to && at(to).empty();
    bool const is_free = fits && !at(to).begun;  // a request that was truncated to nothing may go on
    end const how = call([&] { move ? now_->move(from, to) : now_->fork(from, to); });
    agree(how != end::done || fits);
    agree(how != end::refused || !is_free || of_ == kind::dual);  // of a dual cache: too few pages
    if (how != end::done) return;
    changed const what = none_decided(at(from)) ? changed::maybe : changed::yes;
    note(to, what);
    at(to) = at(from);
    if (!move) return;
    note(from, what);
    at(from) = nothing();
  }

  void swap(int from, int to) {
    *did_ << "save of " << from << ", load into " << to;
    std::vector<std::byte> bytes(now_->saved_bytes(from));
    if (call([&] { now_->save(from, bytes); }) != end::done) return;
    bool const fits = at(to).empty();
    bool const is_free = fits && !at(to).begun;
    end const how = call([&] { now_->load(to, bytes); });
    agree(how != end::done || fits);
    agree(how != end::refused || !is_free || of_ == kind::dual);
    if (how != end::done) return;
    note(to, none_decided(at(from)) ? changed::maybe : changed::yes);
    at(to) = at(from);
  }

  void reorder() {
    if (one_ == nullptr) return;
    std::vector<int> const order = random_.permutation(world::slots);
    *did_ << "reorder " << order[0] << order[1] << order[2] << order[3];
    if (call([&] { kv::reorder(one_->exec, one_->cell.all, *one_->cell.state, order); }) != end::done) return;
    std::vector<request> const before = model_;
    for (int slot = 0; slot < world::slots; ++slot) {
      int const from = order[as_size(slot)];
      at(slot) = before[as_size(from)];
      if (from != slot) note(slot, at(slot).empty() && before[as_size(slot)].empty() ? changed::maybe : changed::yes);
      if (from == slot) note(slot, changed::maybe);
    }
  }

  void truncate(int slot) {
    int const position = random_.chance(15) ? 0 : random_.below(at(slot).next + 2);
    view const v = view_of(slot);
    *did_ << "truncate of " << slot << " to " << position << " of " << at(slot).next << ", " << text_of(v);
    if (call([&] { now_->truncate(v, sequence_in(v, slot), position); }) != end::done) return;
    cut(slot, position);
  }
  void cut(int slot, int position) {
    request& mine = at(slot);
    int gone_everywhere = mine.drafts;
    bool fewer = false;
    for (std::size_t p = 0; p < mine.lanes.size(); ++p) {
      for (held_lane& each : mine.lanes[p]) {
        auto const first =
            std::find_if(each.begin(), each.end(), [&](auto const& t) { return t.position >= position; });
        fewer = fewer || (first != each.end() && (of_ != kind::dual || p == 1));
        if (of_ != kind::dual || p == 0) {
          gone_everywhere = std::min(gone_everywhere, static_cast<int>(each.end() - first));
        }
        each.erase(first, each.end());
      }
    }
    mine.drafts -= gone_everywhere;
    mine.next = std::min(mine.next, position);
    mine.begun = mine.begun && position > 0;
    note(slot, fewer ? changed::yes : changed::maybe);
  }

  /// The window's entries that leave it for new tokens; those whose gate is open go into the pages.
  void leave(int slot, int tokens, int window) {
    request& mine = at(slot);
    for (std::size_t i = 0; i < mine.lanes[0].size(); ++i) {
      held_lane& ring = mine.lanes[0][i];
      int const exits = std::max(0, static_cast<int>(ring.size()) - mine.drafts + tokens - window);
      for (int e = 0; e < exits; ++e) admit(slot, i, ring[as_size(e)]);
      ring.erase(ring.begin(), ring.begin() + exits);
      if (exits > 0) note(slot, changed::maybe);
    }
  }
  void admit(int slot, std::size_t lane, held_token const& one) {
    if (one.gate < 0.5f) return;
    at(slot).lanes[1][lane].push_back({one.number, one.position, 0, one.log_beta});
    note(slot);
  }
  /// False if there is no room in a lane for new tokens, or they would follow drafts.
  bool has_room(int slot, int tokens) {
    request const& mine = at(slot);
    int const bound = of_ == kind::dual ? 8 : world::bound;
    int longest = 0;
    for (held_lane const& each : mine.lanes[0]) longest = std::max(longest, static_cast<int>(each.size()));
    if (of_ != kind::dual && mine.lanes.size() > 1) {
      for (held_lane const& each : mine.lanes[1]) longest = std::max(longest, static_cast<int>(each.size()));
    }
    return longest + tokens <= bound && mine.next + tokens < 4000;
  }

  /// New tokens; their rows, and the numbers that are recorded of them.
  bool write(int slot, int tokens, bool drafts, view v) {
    request& mine = at(slot);
    int const first = mine.next;
    if (call([&] { now_->append(v, {sequence_in(v, slot), tokens, first, drafts}); }) != end::done) return false;
    int const born = born_;
    born_ += tokens;
    mine.next += tokens;
    if (drafts) mine.drafts += tokens;
    mine.begun = mine.begun || tokens > 0;
    note(slot, tokens > 0 ? by_tokens() : changed::maybe);
    auto const pieces = now_->pieces();
    for (std::size_t p = 0; p < (of_ == kind::dual ? 1 : pieces.size()); ++p) {
      for (std::size_t i = 0; i < mine.lanes[p].size(); ++i) {
        held_lane& each = mine.lanes[p][i];
        kv::lane const one = lane_of(p, slot, i);
        for (int t = 0; t < tokens; ++t) {
          each.push_back({born + t, first + t, 0, 0});
          write_row(*pieces[p].all, p, one, static_cast<int>(each.size()) - 1, born + t);
        }
      }
    }
    return true;
  }
  void record(int slot, int tokens) {
    tell_lengths();
    std::vector<int> some(world::slots, 0);
    some[as_size(slot)] = tokens;
    view const v = view_of(slot);
    if (call([&] { now_->record(v, some); }) != end::done) return;
    request& mine = at(slot);
    for (std::size_t p = 0; p < (of_ == kind::dual ? 1 : mine.lanes.size()); ++p) {
      for (std::size_t i = 0; i < mine.lanes[p].size(); ++i) {
        held_lane& each = mine.lanes[p][i];
        for (std::size_t e = each.size() - as_size(tokens); e < each.size(); ++e) {
          tell(slot, i, each[e]);
        }
      }
    }
  }
  /// The numbers that the world tells of a token.
  void tell(int slot, std::size_t lane, held_token& one) const {
    one.log_beta = -0.5f - 0.4f * now_->number(slot * 8 + static_cast<int>(lane), one.position);
    if (of_ == kind::dual) one.gate = world::gate(one.position);
  }

  void append(int slot) {
    int const tokens = random_.below(4);
    view const v = view_of(slot);
    *did_ << "append of " << tokens << " to " << slot << ", " << text_of(v);
    if (at(slot).drafts > 0) return cut_drafts(slot);
    if (both_ != nullptr && !promote(slot, tokens, v)) return;
    if (!has_room(slot, tokens) || !write(slot, tokens, false, v)) return;
    record(slot, tokens);
  }
  bool promote(int slot, int tokens, view v) {
    int const count = v == view::whole ? 4 : 2;
    std::vector<int> some(as_size(count), 0);
    some[as_size(v == view::sequences ? slot - 1 : sequence_in(v, slot))] = tokens;
    end const how = call([&] { both_->promote(v, some); });
    if (how != end::done) return false;
    for (int s = 0; s < world::slots; ++s) {
      if (sequence_in(v, s) < 0) continue;
      leave(s, s == slot ? tokens : 0, 4);
      note(s, changed::maybe);
    }
    return true;
  }
  void cut_drafts(int slot) {
    int const position = at(slot).next - at(slot).drafts;
    *did_ << ", its drafts are rolled back";
    if (call([&] { now_->truncate(view::whole, slot, position); }) == end::done) cut(slot, position);
  }

  void speculate(int slot) {
    request& mine = at(slot);
    if (mine.drafts == 0) {
      int const tokens = random_.between(1, 3);
      *did_ << "drafts of " << slot;
      if (has_room(slot, tokens)) write(slot, tokens, true, view_of(slot));
      return;
    }
    int const accepted = random_.below(mine.drafts + 1);
    int const position = mine.next - mine.drafts + accepted;
    *did_ << accepted << " of " << mine.drafts << " drafts of " << slot << " are accepted";
    if (position < mine.next) {
      if (call([&] { now_->truncate(view::whole, slot, position); }) != end::done) return;
      cut(slot, position);
    }
    view const v = view_of(slot);
    if (call([&] { now_->commit(v, sequence_in(v, slot), accepted); }) != end::done) return;
    mine.drafts -= accepted;
    note(slot, accepted > 0 ? by_tokens() : changed::maybe);
    if (accepted > 0) record(slot, accepted);
  }

  /// The tokens of a lane that stay: those that TRIM-KV scores highest.
  void drop(int slot, int budget, std::size_t piece) {
    request& mine = at(slot);
    int const drafts = of_ == kind::dual ? 0 : mine.drafts;
    for (held_lane& each : mine.lanes[piece]) {
      int const committed = static_cast<int>(each.size()) - drafts;
      if (committed <= budget) continue;
      std::vector<std::pair<float, int>> scores;
      int const newest = each[as_size(committed) - 1].position;
      for (int e = 0; e < committed; ++e) {
        held_token const& one = each[as_size(e)];
        scores.emplace_back(-(static_cast<float>(newest - one.position) * one.log_beta + 0.0f), e);
      }
      std::sort(scores.begin(), scores.end());
      std::set<int> stays;
      for (int k = 0; k < budget; ++k) stays.insert(scores[as_size(k)].second);
      held_lane left;
      for (int e = 0; e < static_cast<int>(each.size()); ++e) {
        if (e >= committed || stays.count(e) > 0) left.push_back(each[as_size(e)]);
      }
      each = left;
    }
  }
  void carried_out(view v) {
    for (int slot = 0; slot < world::slots; ++slot) {
      if (sequence_in(v, slot) < 0) continue;
      if (of_ == kind::dual) drop(slot, 3, 1);
      for (std::size_t p = 0; of_ != kind::dual && p < at(slot).lanes.size(); ++p) drop(slot, 6, p);
      note(slot);
    }
  }
  view any_view() {
    view const any = all_views[random_.below(4)];
    return any == view::layers ? view::whole : any;
  }
  void evict() {
    view const v = any_view();
    *did_ << "decide and apply, " << text_of(v);
    if (call([&] { now_->decide(v, 0); }) != end::done) return;
    if (call([&] { now_->apply(v, 0); }) == end::done) carried_out(v);
  }
  void decide_for_later() {
    later_ = any_view();
    *did_ << "decide for later, " << text_of(later_);
    since_.fill(changed::yes);
    if (call([&] { now_->decide(later_, 1); }) == end::done) since_.fill(changed::no);
  }
  void apply_what_was_decided() {
    changed most = changed::no;
    for (int slot = 0; slot < world::slots; ++slot) {
      if (sequence_in(later_, slot) >= 0) most = std::max(most, since_[as_size(slot)]);
    }
    *did_ << "apply what was decided, " << text_of(later_);
    end const how = call([&] { now_->apply(later_, 1); });
    agree(how != end::done || most != changed::yes);
    agree(how != end::refused || most != changed::no);
    stale += how == end::refused ? 1 : 0;
    if (how == end::done) carried_out(later_);
  }

  void ingest(int slot) {
    if (both_ == nullptr || at(slot).drafts > 0) return;
    std::vector<int> tokens(world::slots, 0);
    tokens[as_size(slot)] = random_.below(9);
    int const some = tokens[as_size(slot)];
    *did_ << "ingest of " << some << " into " << slot;
    tell_lengths();
    both_->bring_chunk(tokens);
    request& mine = at(slot);
    std::vector<held_lane> chunk(mine.lanes[0].size());
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      for (int t = 0; t < some; ++t) {
        chunk[i].push_back({born_ + t, mine.next + t, 0, 0});
        tell(slot, i, chunk[i].back());
        write_row(both_->chunk, 0, lane_of(0, slot, i), t, born_ + t);
      }
    }
    if (call([&] { both_->ingest(); }) != end::done) return;
    born_ += some;
    for (int s = 0; s < world::slots; ++s) leave(s, s == slot ? std::min(some, 4) : 0, 4), note(s, changed::maybe);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      for (int t = 0; t < some; ++t) {
        if (t < some - 4) admit(slot, i, chunk[i][as_size(t)]);
        if (t >= some - 4) mine.lanes[0][i].push_back(chunk[i][as_size(t)]);
      }
    }
    mine.next += some;
    mine.begun = mine.begun || some > 0;
    if (some > 0) note(slot, changed::maybe);
  }

  // --- Rows, and the comparison
  // ---------------------------------------------------------------------------------------

  kv::lane lane_of(std::size_t piece, int slot, std::size_t i) {
    int const heads = now_->pieces()[piece].all->shape.kv_heads;
    return {slot, static_cast<int>(i) / heads, static_cast<int>(i) % heads};
  }
  /// Elements of a row of a token: of a dual cache, the same in the window and in the pages.
  [[nodiscard]] float element(std::size_t piece, kv::lane one, int number, int d, bool key) const {
    std::size_t const group = of_ == kind::dual ? 0 : piece;
    auto const lane = static_cast<std::uint64_t>((static_cast<int>(group) * 8 + one.layer * 4 + one.head) * 2 + key);
    return number_of(static_cast<std::uint64_t>(number) * 64 + lane) + static_cast<float>(d);
  }
  template <class Visit>
  void visit_row(kv::cache const& in, std::size_t piece, kv::lane one, int ordinal, int number, Visit const& visit) {
    for (bool const key : {true, false}) {
      kv::plane const& rows = key ? in.k : in.v;
      auto* const row = reinterpret_cast<float*>(rows.row(one.layer, in.where.at(one, ordinal), one.head));
      for (int d = 0; d < rows.channels; ++d) visit(row[d], element(piece, one, number, d, key));
    }
  }
  void write_row(kv::cache const& in, std::size_t piece, kv::lane one, int ordinal, int number) {
    visit_row(in, piece, one, ordinal, number, [](float& to, float value) { to = value; });
  }

  void check() {
    auto const pieces = now_->pieces();
    bool same = true;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      for (int slot = 0; slot < world::slots; ++slot) {
        for (std::size_t i = 0; i < at(slot).lanes[p].size(); ++i) {
          kv::lane const one = lane_of(p, slot, i);
          bool const here = same_lane(p, *pieces[p].all, *pieces[p].state, one, at(slot).lanes[p][i]);
          CHECK_MESSAGE(here, "piece ", p, ", lane (", slot, ", ", one.layer, ", ", one.head, ")");
          same = same && here;
        }
      }
    }
    if (both_ != nullptr) CHECK(pages_are_right());
    REQUIRE(same);
  }
  bool same_lane(std::size_t p, kv::cache const& in, world::state_type const& state, kv::lane one,
                 held_lane const& expected) {
    if (*in.lanes.count.row(one) != static_cast<int>(expected.size())) return false;
    if (in.lanes.in_flight != nullptr && *in.lanes.drafts(one.sequence) != at(one.sequence).drafts) return false;
    bool same = true;
    for (std::size_t e = 0; e < expected.size(); ++e) {
      same = same && in.lanes.position.row(one)[e] == expected[e].position;
      visit_row(in, p, one, static_cast<int>(e), expected[e].number,
                [&](float found, float value) { same = same && found == value; });
      for (kv::recorded_column const& each : state.columns()) {
        float const found = reinterpret_cast<float const*>(each.rows.row(one))[e];
        bool const is_gate = std::string(each.about.name) == kv::gate::name;
        same = same && found == (is_gate ? expected[e].gate : expected[e].log_beta);
      }
    }
    return same;
  }
  /// Each page is free or in one lane, and lanes have as many as their entries need.
  bool pages_are_right() {
    auto const& free = both_->engine.free_list();
    std::multiset<int> all(free.begin(), free.begin() + both_->engine.free_pages());
    bool right = true;
    for (int i = 0; i < both_->engine.lanes(); ++i) {
      kv::lane const one = both_->all.window.lanes.at(i);
      int const held = *both_->all.pages.num_pages.row(one);
      right = right && held == (*both_->all.pages.entries.lanes.count.row(one) + 3) / 4;
      all.insert(both_->all.pages.table.row(one), both_->all.pages.table.row(one) + held);
    }
    return right && all.size() == 64 && std::set<int>(all.begin(), all.end()).size() == 64;
  }

  kind of_;
  dice random_;
  std::unique_ptr<world> now_;
  dual_world* both_ = nullptr;
  cache_world* one_ = nullptr;
  std::vector<request> model_;
  std::array<changed, world::slots> since_{};  ///< the decision that waits
  view later_ = view::whole;
  int born_ = 1;
  std::ostringstream* did_ = nullptr;
  std::string log_;
};

int asked_steps(int otherwise) {
  char const* const asked = std::getenv("KVPOLICY_SOAK_STEPS");
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

TEST_SUITE("lifecycle/soak") {
  TEST_CASE("requests come and go as in a plain model, whatever the kind of cache, though memory runs out") {
    int const steps = asked_steps(under_address_sanitizer ? 2000 : 4000);
    for (kind const of : all_kinds) {
      for (std::uint64_t seed = 0; seed < 4; ++seed) {  // so that a failure names a short schedule
        INFO("seed ", seed);
        soak now(of, 77000 + seed);
        while (now.steps < steps / 16) now.step();
        CHECK(now.failures > 0);
        CHECK(now.refusals > 0);
      }
    }
  }
}

}  // namespace model_soak_test
