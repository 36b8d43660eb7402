// A sum over all ranks, in Go.
//
//	export CGO_CFLAGS="$(hccl-config --cflags)" CGO_LDFLAGS="$(hccl-config --libs)"
//	go build -o all_reduce examples/c/all_reduce.go
//	export HCCL_COMM_ID=127.0.0.1:45000 WORLD_SIZE=2
//	RANK=0 ./all_reduce & RANK=1 ./all_reduce; wait
package main

// #include <hccl/hccl.h>
import "C"

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"strconv"
	"unsafe"
)

func check(result C.hcclResult_t) {
	if result != C.hcclSuccess {
		log.Fatal(C.GoString(C.hcclGetLastErrorMessage()))
	}
}

func main() {
	runtime.LockOSThread() // the text of an error is its thread's
	rank, _ := strconv.Atoi(os.Getenv("RANK"))
	size, _ := strconv.Atoi(os.Getenv("WORLD_SIZE"))
	var id C.hcclUniqueId // of length 0: HCCL_COMM_ID has the address of rank 0
	var comm C.hcclComm_t
	check(C.hcclCommInitRank(&comm, C.int(size), id, C.int(rank)))
	values := []float32{1, 2, 3, 0.5}
	data := unsafe.Pointer(&values[0])
	check(C.hcclAllReduce(data, data, C.size_t(len(values)), C.hcclFloat32, C.hcclSum, comm, nil))
	check(C.hcclCommDestroy(comm))
	fmt.Printf("rank %d of %d: %v\n", rank, size, values)
}
