"""The lints find what is planted and pass what is clean. Usage: self_test.py CC CXX"""
import json
import os
import shutil
import sys
import tempfile
import unittest

import dashboard
import headers
import includes
import resources
import style

CLEAN = {
    "CMakeLists.txt": "project(x)\n",
    "LICENSE": "No newline at its end, and that is how it came",
    "proto/wire.h": "#include <stdint.h>\nextern uint64_t wire;\n",
    "proto/status.h": "extern int status;\n",
    "proto/codec.c": '#include "proto/mla.pb-c.h"\n#include "proto/wire.h"\n',
    "kernels/plan/plan.h": "extern int plan;\n",
    "daemon/util/log.h": "extern int mla_log;\n",
    "daemon/sched/sched.h": '#include "proto/status.h"\n#include "kernels/plan/plan.h"\n',
    "daemon/net/net.h": '#include <uv.h>\n#include "proto/wire.h"\n#include "daemon/util/log.h"\n',
    "daemon/app/app.h": "extern int app;\n",
    "daemon/app/app.c": '#include <uv.h>\n#include "daemon/net/net.h"\n#include "daemon/sched/sched.h"\n',
    "daemon/main.c": '#include "daemon/app/app.h"\n',
    "client/include/mla/mla.h": "int mla_open(void);\n",
    "tests/unit/test_x.c": '#include <mla/mla.h>\n#include "daemon/net/net.h"\n',
}


class Lint(unittest.TestCase):
    cc = cxx = ""

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="mlad-lint-")
        self.addCleanup(shutil.rmtree, self.root)
        for name, content in CLEAN.items():
            self.write(name, content)

    def write(self, name, content):
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(content)

    def finds(self, check, name, content, words):
        """Exactly one problem, which begins with the file's name and holds the words."""
        self.assertEqual(check(self.root), [])
        self.write(name, content)
        problems = check(self.root)
        self.assertEqual(len(problems), 1, problems)
        self.assertTrue(problems[0].startswith(name), problems)
        self.assertIn(words, problems[0])

    def dashboard(self, change):
        """Problems of a dashboard that is fine but for what change does to its only panel."""
        self.write("golden", '# mlad_a_total counter\nmlad_a_total{kind="x"}\n# mlad_b histogram\nmlad_b_sum{}\n')
        panel = {"id": 1, "title": "P", "type": "timeseries", "gridPos": {"x": 0, "y": 0, "w": 8, "h": 8},
                 "targets": [{"expr": 'sum by (kind, instance) (rate(mlad_a_total{kind!="y",instance=~"$i"}[5m]))'},
                             {"expr": "mlad_b_sum / on (instance) up"}]}
        panels = [panel]
        change(panel, panels)
        self.write("d.json", json.dumps({"panels": panels}))
        labels, families = dashboard.read_golden(os.path.join(self.root, "golden"))
        return dashboard.check_one(os.path.join(self.root, "d.json"), labels, families)

    def test_dashboard(self):
        self.assertEqual(self.dashboard(lambda panel, panels: None), [])
        for expression, words in (("mlad_c", "no metric mlad_c"), ("mlad_b", "no metric mlad_b"),
                                  ('mlad_a_total{kid="x"}', "has no label kid"), ("sum by (kid) (mlad_a_total)", "no label kid"),
                                  ("rat(mlad_a_total)", "no metric rat")):
            problems = self.dashboard(lambda panel, panels: panel["targets"].append({"expr": expression}))
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(words, problems[0])
        self.assertIn("no panel shows mlad_b", self.dashboard(lambda panel, panels: panel["targets"].pop())[0])
        self.assertIn("lies on another", self.dashboard(lambda panel, panels: panels.append({**panel, "id": 2}))[0])

    def test_net_may_not_see_the_scheduler(self):
        self.finds(includes.check, "daemon/net/peer.c", '\n#include "daemon/sched/sched.h"\n', "peer.c:2: daemon/net may")

    def test_sched_sees_only_three_headers_of_proto(self):
        self.finds(includes.check, "daemon/sched/job.c", '#include "proto/wire.h"\n', "may not include proto/wire.h")

    def test_proto_depends_on_nothing(self):
        self.finds(includes.check, "proto/wire.c", '#include "daemon/util/log.h"\n', "proto may not include")

    def test_main_sees_only_app(self):
        self.finds(includes.check, "daemon/main.c", '#include "daemon/net/net.h"\n', "may not include daemon/net")

    def test_uv_stays_in_net_and_app(self):
        self.finds(includes.check, "daemon/sched/loop.c", "#include <uv.h>\n", "<uv.h> does not belong")

    def test_generated_code_stays_in_the_codec(self):
        self.finds(includes.check, "tests/unit/test_y.c", '#include "proto/mla.pb-c.h"\n', "does not belong")

    def test_cuda_stays_out_of_the_daemon(self):
        self.finds(includes.check, "daemon/app/gpu.c", "#include <cuda_runtime.h>\n", "does not belong")

    def test_unseen_threads(self):
        self.finds(includes.check, "tests/unit/test_y.c", "#  include <threads.h>\n", "does not belong")

    def test_includes_are_written_from_the_root(self):
        self.finds(includes.check, "daemon/net/peer.c", '#include "net.h"\n', "not a path from the source root")

    def test_a_new_folder_needs_a_row(self):
        self.finds(includes.check, "kernels/extra/x.c", "int x;\n", "no row")

    def test_header_that_needs_another(self):
        check = lambda root: headers.check(root, self.cc, self.cxx, [])
        self.write("daemon/net/net.h", "extern int net;\n")  # libuv may be absent here
        self.finds(check, "daemon/util/ring.h", "extern size_t ring;\n", "as C17")

    def test_public_header_is_cxx(self):
        check = lambda root: headers.check(root, self.cc, self.cxx, [])
        self.write("daemon/net/net.h", "extern int net;\n")
        self.finds(check, "client/include/mla/mla.h", "int mla_delete(int delete);\n", "as C++17")

    def test_spills_and_stack(self):
        clean = ("ptxas info    : Compiling entry function 'mla_x' for 'sm_90a'\n"
                 "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                 "ptxas info    : Used 228 registers, used 1 barriers\n")
        self.assertEqual(resources.check("x.log", clean), [])
        self.assertIn("no kernel", resources.check("x.log", "")[0])
        self.assertIn("spill", resources.check("x.log", clean.replace("0 bytes spill st", "4 bytes spill st"))[0])
        self.assertIn("stack", resources.check("x.log", clean.replace("0 bytes stack", "16 bytes stack"))[0])
        self.assertIn("C7510", resources.check("x.log", clean + "ptxas info : (C7510) Potential loss\n")[0])

    def test_layout(self):
        self.finds(style.layout, "notes.md", "\n", "top level")

    def test_length(self):
        self.finds(style.length, "daemon/long.c", "\n" * 601, "601 lines")

    def test_unfinished_work(self):
        self.finds(style.text, "daemon/x.c", "/* XX" "X */\n", ":1: unfinished")

    def test_blanks_at_line_end(self):
        self.finds(style.text, "daemon/x.c", "int x; \n", ":1: tab or blanks")

    def test_last_newline(self):
        self.finds(style.text, "daemon/x.c", "int x;", "no newline")

    def test_folder_build_is_not_the_tree(self):
        self.write("build/dev/x.c", "XX" "X")
        self.assertEqual(style.text(self.root) + style.layout(self.root), [])


if __name__ == "__main__":
    Lint.cc, Lint.cxx = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
