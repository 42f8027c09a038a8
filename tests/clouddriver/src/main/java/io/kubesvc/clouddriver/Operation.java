package io.kubesvc.clouddriver;

import com.netflix.spinnaker.clouddriver.data.task.Task;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** An operation of an account, run by kubectl. */
interface Operation {
  /** Runs it, and notes each step in the task. */
  Result run(Task task) throws Exception;

  /** What an operation has done; the names of the fields are Clouddriver's. */
  class Result {
    public final Map<String, List<String>> manifestNamesByNamespace = new TreeMap<>();
    public final List<Object> manifests = new ArrayList<>();
    public final List<Object> createdArtifacts = new ArrayList<>();
    public final List<Object> boundArtifacts = List.of();

    void name(String namespace, String fullName) {
      manifestNamesByNamespace.computeIfAbsent(namespace, any -> new ArrayList<>()).add(fullName);
    }
  }
}
