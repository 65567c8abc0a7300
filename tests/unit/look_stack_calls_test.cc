// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "look/stack_calls.h"

namespace weir {
namespace {

using testing::ElementsAre;

using Stacks = std::vector<std::vector<std::uint32_t>>;

// One stack of these frames.
CallStacks folded(const std::vector<RecordedFrame>& frames) {
  std::vector<std::uint32_t> stack(frames.size());
  for (std::uint32_t i = 0; i < stack.size(); ++i) stack[i] = i;
  return calls_of(frames, {{}, stack});
}

std::vector<std::string> text(const CallStacks& stacks) { return calls_text(stacks, stacks.of(1)); }

const RecordedFrame kUnwind{"torch::unwind::unwind()", "", 0};
const RecordedFrame kGather{"torch::CapturedTraceback::gather(bool, bool, bool)", "", 0};
const RecordedFrame kMalloc{"c10::cuda::CUDACachingAllocator::Native::malloc(void**)", "", 0};
const RecordedFrame kEngine{"torch::autograd::Engine::thread_main(GraphTask)", "", 0};

TEST(StackCalls, ASnapshotsStackIsNamedByTheUsersOwnLineAndTheOperator) {
  const CallStacks stacks =
      folded({kUnwind,
              kGather,
              kMalloc,
              {"at::_ops::empty_memory_format::call(c10::SymInt)", "", 0},
              {"at::_ops::exp::call(at::Tensor const&)", "", 0},
              {"torch::autograd::THPVariable_exp(_object*, _object*)", "methods_1.cpp", 0},
              {"cfunction_call", "/usr/src/Objects/methodobject.c", 537},
              {"softmax", "/x/a/project/src/nn.py", 6},
              {"_PyEval_EvalFrameDefault", "Python/bytecodes.c", 2706},
              {"_call_impl", "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1750},
              {"forward", "/x/a/project/src/model.py", 39},
              {"_run_code", "/usr/lib/python3.11/runpy.py", 88},
              {"__libc_start_main", "", 0}});
  EXPECT_THAT(text(stacks), ElementsAre("softmax (nn.py:6) · exp", "forward (model.py:39)"));
}

TEST(StackCalls, WithoutCppFramesPyTorchsInnermostFunctionIsTheOperator) {
  const std::string torch = "C:\\Users\\a\\env\\Lib\\site-packages\\torch\\nn\\";
  EXPECT_THAT(text(folded({{"linear", torch + "functional.py", 114},
                           {"forward", torch + "modules\\linear.py", 125},
                           {"_call_impl", torch + "modules\\module.py", 1750},
                           {"<listcomp>", "C:\\research\\adam_forward.py", 168},
                           {"main", "C:\\research\\train.py", 20}})),
              ElementsAre("<listcomp> (adam_forward.py:168) · linear", "main (train.py:20)"));
}

TEST(StackCalls, APackageIsCalledByTheUsersLine) {
  const CallStacks stacks = folded({{"matmul", "/v/site-packages/torch/functional.py", 9},
                                    {"einsum", "/v/site-packages/einops/einops.py", 907},
                                    {"attend", "/x/a/model.py", 12},
                                    {"main", "/x/a/train.py", 3}});
  EXPECT_THAT(text(stacks),
              ElementsAre("attend (model.py:12) · einsum (einops.py:907)", "main (train.py:3)"));
  EXPECT_EQ(stacks.of(1).frames.size(), 3U);  // a picture shows the package's call below the user's
}

TEST(StackCalls, ABackwardPassHasNoPythonAndSaysSo) {
  EXPECT_THAT(
      text(folded({kUnwind,
                   kMalloc,
                   {"torch::autograd::generated::details::unbind_backward()", "", 0},
                   {"torch::autograd::generated::BmmBackward0::apply(std::vector<>&&)", "", 0},
                   kEngine,
                   {"start_thread", "pthread_create.c", 477}})),
      ElementsAre("BmmBackward0 (backward pass)"));
  EXPECT_THAT(text(folded({kUnwind, kMalloc, kEngine})), ElementsAre("backward pass"));
}

TEST(StackCalls, StacksThatDifferInPyTorchsFramesOnlyAreOne) {
  const CallStacks stacks = calls_of({{"exp", "/x/site-packages/torch/a.py", 1},
                                      {"div", "/x/site-packages/torch/a.py", 2},
                                      {"softmax", "nn.py", 6}},
                                     {{}, {0, 2}, {1, 2}, {0, 2}});
  EXPECT_EQ(stacks.calls.size(), 2U);
  EXPECT_EQ(&stacks.of(1), &stacks.of(2));
  EXPECT_THAT(text(stacks), ElementsAre("softmax (nn.py:6) · exp, div"));
}

TEST(StackCalls, AProgramOfCppHasItsOwnFrames) {
  EXPECT_THAT(text(folded({{"at::empty(long)", "", 0},
                           {"Net::on_start(int)", "src/net.cc", 7},
                           {"main", "main.cc", 3},
                           {"_start", "", 0}})),
              ElementsAre("Net::on_start(int) (net.cc:7)", "main (main.cc:3)"));
  // What nobody knows better is shown as it is.
  EXPECT_THAT(
      text(folded({kUnwind, kGather})),
      ElementsAre("torch::unwind::unwind()", "torch::CapturedTraceback::gather(bool, bool, bool)"));
}

TEST(StackCalls, PathsKeepTwoFoldersOnAllSystems) {
  EXPECT_EQ(short_path("/x/a/project/src/nn.py"), "project/src/nn.py");
  EXPECT_EQ(short_path("C:\\Users\\a\\project\\src\\nn.py"), "project/src/nn.py");
  EXPECT_EQ(short_path("src/nn.py"), "src/nn.py");
  EXPECT_EQ(short_path("/nn.py"), "/nn.py");
  EXPECT_EQ(short_path(std::string("/") + "home/somebody/nn.py"), "nn.py");
  EXPECT_EQ(short_path("C:\\Users\\somebody\\src\\nn.py"), "src/nn.py");
  EXPECT_EQ(short_path(""), "");
}

TEST(StackCalls, WhatMemoryIsForIsToldByTheInnermostFrameThatTells) {
  const std::string torch = "/v/lib/python3.11/site-packages/torch/";
  const RecordedFrame own{"train", "/x/train.py", 9},
      call{"Module._call_impl", torch + "nn/modules/module.py", 3},
      step{"AdamW.step", torch + "optim/adamw.py", 200};
  const auto purpose = [&](const std::vector<RecordedFrame>& frames) {
    return name_of(folded(frames).purposes.at(1));
  };
  EXPECT_EQ(purpose({{"relu", torch + "nn/functional.py", 4}, own}), "activations");
  EXPECT_EQ(purpose({{"Linear.__init__", torch + "nn/modules/linear.py", 99}, own}), "weights");
  EXPECT_EQ(purpose({{"convert", torch + "nn/modules/module.py", 9}, own}), "weights");
  EXPECT_EQ(purpose({{"there before the recording began", "", 0}, call}), "weights");
  EXPECT_EQ(purpose({{"_init_group", torch + "optim/adamw.py", 9}, step, own}), "optimizer state");
  EXPECT_EQ(purpose({{"broadcast_coalesced", torch + "nn/parallel/comm.py", 66},
                     {"replicate", torch + "nn/parallel/replicate.py", 110},
                     {"forward", torch + "nn/parallel/data_parallel.py", 182},
                     {"_call_impl", torch + "nn/modules/module.py", 1500},
                     own}),
            "weights");
  EXPECT_EQ(purpose({own, call, step}), "activations");  // a closure that an optimizer calls
  EXPECT_EQ(purpose({kMalloc, kEngine}), "gradients");
  EXPECT_EQ(purpose({{"_engine_run_backward", torch + "autograd/graph.py", 8}, own}), "gradients");
  EXPECT_EQ(purpose({kMalloc, {"at::cuda::getNewWorkspace()", "", 0}, call}), "workspace");
  // Nothing is said of programs that have nothing to do with PyTorch.
  EXPECT_TRUE(
      folded({{"forward", "src/model.cc", 3}, {"main", "src/main.cc", 5}}).purposes.empty());
}

}  // namespace
}  // namespace weir
