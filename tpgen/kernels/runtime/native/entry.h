// A row of the table of deployed kernels.  Needs: product.

struct Entry {
  const char* description;
  Product* product;
  i64 edges, dtype, mask;
  const char* file;
  i64 sum;  // of the file
};
