--- channel-forward
+++ this
@@ -5 +5 @@
-// prelude c5f32ff1a758
+// prelude a86df82230c5
@@ -13 +13 @@
-    const num* x = t_x2 + (1 + v * 3) * W;
+    const num* x = t_x2 + (1 + v * 1) * W;
@@ -33 +33 @@
-  stage<1, 16, 3>(x1 + 0, s_x1 + 0);
+  stage<3, 16, 1>(x1 + 0, s_x1 + 0);
@@ -57,2 +57,3 @@
-      const vec o_out[3] = {sum_out_0, sum_out_1, sum_out_2};
-      Tile<3>::put_items(d_out + 16 + c * 3, o_out);
+      put(d_out + 16 + c, sum_out_0);
+      put(d_out + 32 + c, sum_out_1);
+      put(d_out + 48 + c, sum_out_2);
