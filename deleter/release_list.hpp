// A first-in first-out list of nodes, linked through the nodes themselves: it never allocates.
#pragma once

#include <utility>

#include "escrow/deleter/release_node.hpp"

namespace escrow {

// Owned by one thread at a time. A node is in one list at most.
class release_list {
 public:
  release_list() = default;
  release_list(release_list&& other) noexcept
      : head_(std::exchange(other.head_, nullptr)), tail_(std::exchange(other.tail_, nullptr)) {}
  release_list& operator=(release_list&& other) noexcept {
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
    return *this;
  }

  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] release_node* front() const noexcept { return head_; }
  [[nodiscard]] release_node* back() const noexcept { return tail_; }

  void push_back(release_node& node) noexcept {
    node.next_ = nullptr;
    (head_ == nullptr ? head_ : tail_->next_) = &node;
    tail_ = &node;
  }

  void push_front(release_node& node) noexcept {
    node.next_ = head_;
    if (head_ == nullptr) tail_ = &node;
    head_ = &node;
  }

  // The first node, taken out; null if there is none.
  release_node* pop_front() noexcept {
    release_node* const node = head_;
    if (node != nullptr) {
      head_ = node->next_;
      if (head_ == nullptr) tail_ = nullptr;
      node->next_ = nullptr;
    }
    return node;
  }

  // Moves all of `other` to the end.
  void splice_back(release_list& other) noexcept {
    if (other.empty()) return;
    (head_ == nullptr ? head_ : tail_->next_) = other.head_;
    tail_ = other.tail_;
    other.head_ = other.tail_ = nullptr;
  }

 private:
  release_node* head_ = nullptr;
  release_node* tail_ = nullptr;
};

}  // namespace escrow
