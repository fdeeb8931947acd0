--- matrix-forward
+++ this
@@ -1 +1 @@
-// matrix schedule: tiles of 96 rows, 16 lanes of float32
+// matrix schedule: tiles of 96 rows, 4 lanes of float32
@@ -5 +5 @@
-// prelude 0fc9a0f4ea6b
+// prelude c8cc1d97de07
@@ -8 +8 @@
-  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + r * 34 + 16, s_x1 + 0 * (i64)R + r * 48);
+  for (i64 r = 0; r < n; ++r) stage<1, 6, 3>(p_x1 + r * 34 + 16, s_x1 + 0 * (i64)R + r * 24);
@@ -12,2 +12,2 @@
-  multiply<16>(false, a_out + 0 * (i64)R, 16, s_x1 + 0 * (i64)R, 16, 1, weights + 512, 16, n * 3, 6);
-  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 0 * (i64)R + r * 48, q_out + r * 45 + 32);
+  multiply<4>(false, a_out + 0 * (i64)R, 4, s_x1 + 0 * (i64)R, 8, 1, weights + 512, 4, n * 3, 6);
+  for (i64 r = 0; r < n; ++r) unstage<1, 4, 3>(a_out + 0 * (i64)R + r * 12, q_out + r * 45 + 32);
@@ -25 +25 @@
-  const Room<num> weights_room(608); num* const weights = weights_room.at; if (!weights) return 1;
+  const Room<num> weights_room(536); num* const weights = weights_room.at; if (!weights) return 1;
@@ -30 +30 @@
-    const Room<num> scratch_room(9216); num* const scratch = scratch_room.at;
+    const Room<num> scratch_room(3456); num* const scratch = scratch_room.at;
@@ -32 +32 @@
-    num* const a_out = scratch + 4608;
+    num* const a_out = scratch + 2304;
