/* SPDX-License-Identifier: MIT
 * The C++11 twin of consumer.c: plan and execute with a workspace, backward of one query on two keys by hand. */
#include <attn.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

attn_tensor view(std::vector<double> &data, int64_t rows, int64_t columns) {
    attn_tensor t;
    const int64_t shape[] = {1, 1, rows, columns};
    attn_tensor_contiguous(&t, data.data(), ATTN_F64, columns ? 4 : 3, shape);
    return t;
}

bool good(const char *what, attn_status status) {
    if (status) std::fprintf(stderr, "%s: %s: %s\n", what, attn_status_name(status), attn_last_error());
    return status == ATTN_OK;
}

bool execute(attn_ctx *ctx, const attn_problem &problem, attn_args args) {
    attn_plan *plan = nullptr;
    attn_plan_info info = attn_plan_info();
    info.size = sizeof info;
    if (!good("attn_plan_create", attn_plan_create(ctx, ATTN_DEVICE_CPU, &problem, nullptr, &plan))) return false;
    bool done = good("attn_plan_get_info", attn_plan_get_info(plan, &info));
    std::vector<unsigned char> workspace(info.workspace_bytes + info.workspace_alignment);
    const uintptr_t at = reinterpret_cast<uintptr_t>(workspace.data()), step = info.workspace_alignment;
    if (info.workspace_bytes) args.workspace = reinterpret_cast<void *>((at + step - 1) / step * step);
    args.workspace_bytes = info.workspace_bytes;
    done = done && good("attn_execute", attn_execute(plan, &args));
    attn_plan_release(plan);
    return done;
}

} // namespace

int main() {
    attn_ctx *ctx = nullptr;
    if (!good("attn_ctx_create", attn_ctx_create(nullptr, &ctx))) return 1;

    std::vector<double> q = {0.5}, k = {1.0, -2.0}, v = {3.0, 5.0}, out(1), lse(1), dout = {1.0}, dq(1), dk(2), dv(2);
    attn_tensor tq = view(q, 1, 1), tk = view(k, 2, 1), tv = view(v, 2, 1), to = view(out, 1, 1), tl = view(lse, 1, 0),
                tdo = view(dout, 1, 1), tdq = view(dq, 1, 1), tdk = view(dk, 2, 1), tdv = view(dv, 2, 1);
    attn_problem problem = ATTN_PROBLEM_INIT;
    if (!good("attn_problem_parse", attn_problem_parse("sdpa_fwd hq=1 sq=1 sk=2 d=1 f64", &problem))) return 1;
    attn_args args = ATTN_ARGS_INIT;
    args.q = &tq;
    args.k = &tk;
    args.v = &tv;
    args.out = &to;
    args.lse = &tl;
    if (!execute(ctx, problem, args)) return 1;
    problem.op = ATTN_OP_SDPA_BWD;
    args.dout = &tdo;
    args.dq = &tdq;
    args.dk = &tdk;
    args.dv = &tdv;
    if (!execute(ctx, problem, args)) return 1;
    attn_ctx_release(ctx);

    // scores 0.5 and -1: p = 1/(1 + e^-1.5); out = 5 - 2p; dout/dscore0 = p (1-p) (3-5)
    const double p = 1 / (1 + std::exp(-1.5)), slope = p * (1 - p) * (3.0 - 5.0);
    const double expected[] = {5 - 2 * p, std::log(std::exp(0.5) + std::exp(-1.0)), slope * 1.0 - slope * -2.0,
                               slope * 0.5, -slope * 0.5, p, 1 - p};
    const double given[] = {out[0], lse[0], dq[0], dk[0], dk[1], dv[0], dv[1]};
    double worst = 0;
    for (int i = 0; i < 7; i++) worst = std::fmax(worst, std::fabs(expected[i] - given[i]));
    std::printf("C++: worst difference %.1e\n", worst);
    return worst < 1e-12 ? 0 : 1;
}
