// What GCC 9 to 11 lack of what kernels use, by what they have: a shuffle whose lanes stand in a vector.  Inlined, its lanes
// are constants again.

template <int SIZE> struct tpgen_integer { typedef int type; };
template <> struct tpgen_integer<2> { typedef short type; };
template <> struct tpgen_integer<8> { typedef long long type; };

template <class V, class... Lane>
static inline __attribute__((always_inline)) auto __builtin_shufflevector(V a, V b, Lane... lane) {
  typedef __typeof__(a[0]) number;
  typedef typename tpgen_integer<sizeof(number)>::type integer;
  constexpr int given = sizeof(V) / sizeof(number), wanted = sizeof...(Lane);
  typedef integer lanes __attribute__((vector_size(wanted * sizeof(number))));
  typedef number result __attribute__((vector_size(wanted * sizeof(number))));
  if constexpr (given == wanted) return __builtin_shuffle(a, b, lanes{(integer)lane...});
  else return result{(lane < given ? a[lane] : b[lane - given])...};  // halves put together, or taken out
}
